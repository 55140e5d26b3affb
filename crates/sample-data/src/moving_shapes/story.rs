//! Attributes of a clip.

use super::caption;
use crate::random::Random;

/// Purpose of a random stream, so that two purposes never share numbers.
#[derive(Clone, Copy)]
pub(super) enum StoryPurpose {
    Deck = 101,
    Story = 102,
    Caption = 103,
    Look = 104,
}

pub(super) fn random(seed: u64, purpose: StoryPurpose, index: usize) -> Random {
    let next = |state: u64| Random::from_state(state).bits();
    let named = next(next(seed) ^ purpose as u64);
    Random::from_state(next(named ^ index as u64))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    Left,
    Right,
    Up,
    Down,
}

impl Direction {
    pub const ALL: [Direction; 4] = [
        Direction::Left,
        Direction::Right,
        Direction::Up,
        Direction::Down,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Direction::Left => "left",
            Direction::Right => "right",
            Direction::Up => "up",
            Direction::Down => "down",
        }
    }

    /// Unit vector of the movement: x to the right, y down.
    pub(super) fn vector(self) -> [f64; 2] {
        match self {
            Direction::Left => [-1.0, 0.0],
            Direction::Right => [1.0, 0.0],
            Direction::Up => [0.0, -1.0],
            Direction::Down => [0.0, 1.0],
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Speed {
    /// Crosses a sixth of the picture during the clip.
    Slow,
    /// Crosses nearly half of the picture during the clip.
    Fast,
}

impl Speed {
    pub const ALL: [Speed; 2] = [Speed::Slow, Speed::Fast];

    pub fn name(self) -> &'static str {
        match self {
            Speed::Slow => "slow",
            Speed::Fast => "fast",
        }
    }

    /// Distance covered during the clip, in picture widths.
    pub(super) fn distance(self) -> f64 {
        match self {
            Speed::Slow => 0.16,
            Speed::Fast => 0.44,
        }
    }
}

/// Change of the shape during the clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Change {
    Nothing,
    /// The shape takes another colour.
    Colour(Paint),
    Grows,
    Shrinks,
}

impl Change {
    pub fn name(self) -> &'static str {
        match self {
            Change::Nothing => "nothing",
            Change::Colour(_) => "colour",
            Change::Grows => "grows",
            Change::Shrinks => "shrinks",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Paint {
    Red,
    Green,
    Blue,
    Yellow,
    Purple,
    White,
}

impl Paint {
    pub const ALL: [Paint; 6] = [
        Paint::Red,
        Paint::Green,
        Paint::Blue,
        Paint::Yellow,
        Paint::Purple,
        Paint::White,
    ];

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
    pub const ALL: [Shape; 5] = [
        Shape::Circle,
        Shape::Square,
        Shape::Triangle,
        Shape::Ring,
        Shape::Cross,
    ];

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

/// Attributes of a clip, as its labels state them.
#[derive(Clone, Debug, PartialEq)]
pub struct Story {
    pub shape: Shape,
    /// First colour of the shape.
    pub paint: Paint,
    pub direction: Direction,
    pub speed: Speed,
    pub change: Change,
    pub caption: String,
    /// Time of a change of colour: 0 is the start of the clip, 1 its end.
    pub(super) change_time: f64,
    /// Position at half the time, in picture widths from the top left.
    pub(super) middle: [f64; 2],
    /// Half of the shape's width at half the time, in picture widths.
    pub(super) radius: f64,
}

/// Kinds of change; each is equally frequent for every direction and speed.
const NUM_CHANGES: usize = 4;

/// Attributes of the clip at an index of a set, without its frames.
pub fn describe(index: usize, seed: u64) -> Story {
    let (direction, speed, change) = card(index, seed);
    let mut random = random(seed, StoryPurpose::Story, index);
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
        &mut super::story::random(seed, StoryPurpose::Caption, index),
    );
    story
}

/// Direction, speed and change: every 32 consecutive clips have each combination once, in a shuffled order.
fn card(index: usize, seed: u64) -> (Direction, Speed, usize) {
    let mut deck: Vec<usize> = (0..Direction::ALL.len() * Speed::ALL.len() * NUM_CHANGES).collect();
    let run = index / deck.len();
    random(seed, StoryPurpose::Deck, run).shuffle(&mut deck);
    let card = deck[index % deck.len()];
    let (direction, rest) = (card % 4, card / 4);
    (Direction::ALL[direction], Speed::ALL[rest % 2], rest / 2)
}
