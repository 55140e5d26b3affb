//! One sentence about a car, in the words of its attributes.

use super::{Background, Colour, Facts};
use crate::random::Random;

/// Caption templates. Each names make and colour, and little else, so that captions differ mainly in the make.
const TEMPLATES: [&str; 12] = [
    "{a_colour} {make} {body} parked {place}, facing {side}",
    "{a_colour} {make} {model} {place}, {view}",
    "a photo of {a_colour} {make} {body}",
    "a picture of {a_colour} {make} facing {side}",
    "a {make} in {colour}, parked {place}",
    "{view} of {a_colour} {make} {body}",
    "the {make} {model} painted {colour}, facing {side}",
    "{a_colour} car made by {make} in {year}",
    "a {year} {make} car painted {colour}",
    "{a_colour} car with the {make} badge",
    "the badge of {make} on {a_colour} {body}",
    "this {colour} {body} was made by {make}",
];

pub(super) fn write(facts: &Facts, random: &mut Random) -> String {
    let colour = facts.colour.name();
    let article = if facts.colour == Colour::Orange {
        "an"
    } else {
        "a"
    };
    let side = if facts.viewpoint.faces_left() {
        "left"
    } else {
        "right"
    };
    let view = if facts.viewpoint.shows_front() {
        "front corner view"
    } else {
        "side view"
    };
    let place = random.pick(&places(facts.background));
    random
        .pick(&TEMPLATES)
        .replace("{a_colour}", &format!("{article} {colour}"))
        .replace("{colour}", colour)
        .replace("{make}", facts.make.name())
        .replace("{body}", facts.body.name())
        .replace("{model}", facts.body.model())
        .replace("{year}", &facts.year.to_string())
        .replace("{place}", place)
        .replace("{side}", side)
        .replace("{view}", view)
}

fn places(background: Background) -> [&'static str; 2] {
    match background {
        Background::City => ["in the city", "on a city street"],
        Background::Desert => ["in the desert", "among desert dunes"],
        Background::Forest => ["in the forest", "by the forest"],
        Background::Sea => ["by the sea", "on the beach by the sea"],
        Background::Mountains => ["in the mountains", "on a road in the mountains"],
        Background::Snow => ["in the snow", "in the falling snow"],
        Background::Night => ["at night", "under the moon at night"],
        Background::Studio => ["in a studio", "in a plain studio"],
    }
}
