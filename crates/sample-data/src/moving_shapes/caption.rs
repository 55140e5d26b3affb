//! Captions of clips, some short, some of two sentences. All name the shape, its first colour, the direction and the change.

use super::{Change, Direction, Speed, Story};
use crate::random::Random;

pub(super) fn write(story: &Story, random: &mut Random) -> String {
    let thing = format!("{} {}", story.paint.name(), story.shape.name());
    let way = match story.direction {
        Direction::Left => random.pick(&["to the left", "left"]),
        Direction::Right => random.pick(&["to the right", "right"]),
        Direction::Up => random.pick(&["up", "upwards"]),
        Direction::Down => random.pick(&["down", "downwards"]),
    };
    let pace = match story.speed {
        Speed::Slow => "slowly",
        Speed::Fast => "quickly",
    };
    match random.below(4) {
        0 => short(story, &thing),
        1 => format!("a {thing} moves {pace} {way}{}", and(story)),
        2 => format!("a clip of a {thing} that moves {way} {pace}{}", and(story)),
        _ => format!("A {thing} moves {pace} {way}. {}", sentence(story, random)),
    }
}

/// A caption without the speed.
fn short(story: &Story, thing: &str) -> String {
    let change = match story.change {
        Change::Nothing => String::new(),
        Change::Colour(paint) => format!(" and turning {}", paint.name()),
        Change::Grows => " and growing".to_owned(),
        Change::Shrinks => " and shrinking".to_owned(),
    };
    format!("{thing} moving {}{change}", story.direction.name())
}

fn and(story: &Story) -> String {
    match story.change {
        Change::Nothing => String::new(),
        Change::Colour(paint) => format!(" and turns {}", paint.name()),
        Change::Grows => " and grows".to_owned(),
        Change::Shrinks => " and shrinks".to_owned(),
    }
}

fn sentence(story: &Story, random: &mut Random) -> String {
    match story.change {
        Change::Nothing => random
            .pick(&[
                "Its colour and its size stay the same.",
                "Nothing else changes.",
            ])
            .to_owned(),
        Change::Colour(paint) => {
            let name = paint.name();
            match random.below(2) {
                0 => format!("On the way it turns {name}."),
                _ => format!("First it is {}, then it is {name}.", story.paint.name()),
            }
        }
        Change::Grows => random
            .pick(&["It grows on the way.", "At the end it is larger."])
            .to_owned(),
        Change::Shrinks => random
            .pick(&["It shrinks on the way.", "At the end it is smaller."])
            .to_owned(),
    }
}
