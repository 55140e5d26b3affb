//! What happens in a clip.

use super::caption;
use crate::random::Random;

/// What a stream of draws is for, so that two purposes never share numbers.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    Deck = 101,
    Story = 102,
    Caption = 103,
    Look = 104,
}

pub(super) fn random(seed: u64, purpose: Purpose, index: usize) -> Random {
    let next = |state: u64| Random::from_state(state).bits();
    let named = next(next(seed) ^ purpose as u64);
    Random::from_state(next(named ^ index as u64))
}

/// Which way a shape moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// To the left.
    Left,
    /// To the right.
    Right,
    /// Upwards.
    Up,
    /// Downwards.
    Down,
}

impl Direction {
    /// All of them.
    pub const ALL: [Direction; 4] = [
        Direction::Left,
        Direction::Right,
        Direction::Up,
        Direction::Down,
    ];

    /// As the labels say it.
    pub fn name(self) -> &'static str {
        match self {
            Direction::Left => "left",
            Direction::Right => "right",
            Direction::Up => "up",
            Direction::Down => "down",
        }
    }

    /// Across and down.
    pub(super) fn vector(self) -> [f64; 2] {
        match self {
            Direction::Left => [-1.0, 0.0],
            Direction::Right => [1.0, 0.0],
            Direction::Up => [0.0, -1.0],
            Direction::Down => [0.0, 1.0],
        }
    }
}

/// How fast it moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Speed {
    /// A sixth of the picture during the clip.
    Slow,
    /// Nearly a half.
    Fast,
}

impl Speed {
    /// Both.
    pub const ALL: [Speed; 2] = [Speed::Slow, Speed::Fast];

    /// As the labels say it.
    pub fn name(self) -> &'static str {
        match self {
            Speed::Slow => "slow",
            Speed::Fast => "fast",
        }
    }

    /// Pictures that it crosses during the clip.
    pub(super) fn distance(self) -> f64 {
        match self {
            Speed::Slow => 0.16,
            Speed::Fast => 0.44,
        }
    }
}

/// What becomes of it on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    /// It stays as it is.
    Nothing,
    /// It takes another colour.
    Colour(Paint),
    /// It becomes larger.
    Grows,
    /// It becomes smaller.
    Shrinks,
}

impl Change {
    /// As the labels say it.
    pub fn name(self) -> &'static str {
        match self {
            Change::Nothing => "nothing",
            Change::Colour(_) => "colour",
            Change::Grows => "grows",
            Change::Shrinks => "shrinks",
        }
    }
}

/// A colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Paint {
    /// Red.
    Red,
    /// Green.
    Green,
    /// Blue.
    Blue,
    /// Yellow.
    Yellow,
    /// Purple.
    Purple,
    /// White.
    White,
}

impl Paint {
    /// All of them.
    pub const ALL: [Paint; 6] = [
        Paint::Red,
        Paint::Green,
        Paint::Blue,
        Paint::Yellow,
        Paint::Purple,
        Paint::White,
    ];

    /// As captions and labels say it.
    pub fn name(self) -> &'static str {
        match self {
            Paint::Red => "red",
            Paint::Green => "green",
            Paint::Blue => "blue",
            Paint::Yellow => "yellow",
            Paint::Purple => "purple",
            Paint::White => "white",
        }
    }

    pub(super) fn rgb(self) -> [f64; 3] {
        match self {
            Paint::Red => [215.0, 40.0, 40.0],
            Paint::Green => [40.0, 170.0, 70.0],
            Paint::Blue => [50.0, 90.0, 220.0],
            Paint::Yellow => [235.0, 205.0, 45.0],
            Paint::Purple => [150.0, 60.0, 180.0],
            Paint::White => [240.0, 240.0, 240.0],
        }
    }
}

/// A shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Shape {
    /// A disc.
    Circle,
    /// Upright.
    Square,
    /// Its point is up.
    Triangle,
    /// A circle with a hole.
    Ring,
    /// Two bars, upright.
    Cross,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 5] = [
        Shape::Circle,
        Shape::Square,
        Shape::Triangle,
        Shape::Ring,
        Shape::Cross,
    ];

    /// As captions and labels say it.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Circle => "circle",
            Shape::Square => "square",
            Shape::Triangle => "triangle",
            Shape::Ring => "ring",
            Shape::Cross => "cross",
        }
    }
}

/// What happens in a clip; what its labels say.
#[derive(Clone, Debug, PartialEq)]
pub struct Story {
    /// What moves.
    pub shape: Shape,
    /// Its colour at first.
    pub paint: Paint,
    /// Where it goes.
    pub direction: Direction,
    /// How fast.
    pub speed: Speed,
    /// What becomes of it.
    pub change: Change,
    /// In words.
    pub caption: String,
    /// When its colour changes, where it does: 0 is the beginning of the clip, 1 its end.
    pub(super) change_time: f64,
    /// Where it is at half the time, in pictures from the top left.
    pub(super) middle: [f64; 2],
    /// Half its width at half the time, in pictures.
    pub(super) radius: f64,
}

/// Kinds of change that every direction and speed has as often.
const NUM_CHANGES: usize = 4;

/// The clip at an index of a set, without its frames.
pub fn describe(index: usize, seed: u64) -> Story {
    let (direction, speed, change) = card(index, seed);
    let mut random = random(seed, Purpose::Story, index);
    let shape = random.pick(&Shape::ALL);
    let paint = random.pick(&Paint::ALL);
    let change = match change {
        0 => Change::Nothing,
        1 => {
            let others = Paint::ALL.into_iter();
            let others: Vec<Paint> = others.filter(|other| *other != paint).collect();
            Change::Colour(random.pick(&others))
        }
        2 => Change::Grows,
        _ => Change::Shrinks,
    };
    // Before or after the middle, each as often, and never near it.
    let early = 0.3 + 0.1 * random.unit();
    let change_time = if random.unit() < 0.5 {
        early
    } else {
        1.0 - early
    };
    let mut story = Story {
        shape,
        paint,
        direction,
        speed,
        change,
        caption: String::new(),
        change_time,
        middle: [0.36 + 0.28 * random.unit(), 0.36 + 0.28 * random.unit()],
        radius: 0.1 + 0.025 * random.unit(),
    };
    story.caption = caption::write(
        &story,
        &mut super::story::random(seed, Purpose::Caption, index),
    );
    story
}

/// Direction, speed and change: each combination once in every run of 32, in an order of its own.
fn card(index: usize, seed: u64) -> (Direction, Speed, usize) {
    let mut deck: Vec<usize> = (0..Direction::ALL.len() * Speed::ALL.len() * NUM_CHANGES).collect();
    let run = index / deck.len();
    random(seed, Purpose::Deck, run).shuffle(&mut deck);
    let card = deck[index % deck.len()];
    let (direction, rest) = (card % 4, card / 4);
    (Direction::ALL[direction], Speed::ALL[rest % 2], rest / 2)
}
