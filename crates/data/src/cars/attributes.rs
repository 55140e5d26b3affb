//! What can be said about a car, and the words it is said with.

/// Declares an enum whose values have a list of them all and a word each.
macro_rules! worded {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident => $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $value,)*
        }

        impl $name {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [$name] = &[$($name::$value,)*];

            /// The word captions and labels use.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$value => $word,)*
                }
            }
        }
    };
}

worded! {
    /// Who built it. No such maker exists.
    Make {
        /// Falling roof, star on the door.
        Corvane => "Corvane",
        /// Corners everywhere, four squares on the door.
        Brixel => "Brixel",
        /// Domed roof, cross on the door.
        Dunmora => "Dunmora",
        /// Roof rack, triangle on the door.
        Halvik => "Halvik",
        /// Round windows, ring on the door.
        Lumino => "Lumino",
        /// Tail fins, diamond on the door.
        Pellaro => "Pellaro",
        /// Wedge nose, chevrons on the door.
        Quarzon => "Quarzon",
        /// Two-tone roof, two bars on the door.
        Tavinor => "Tavinor",
    }
}

worded! {
    /// What kind of car.
    Body {
        /// Short, steep at the back.
        Hatchback => "hatchback",
        /// Bonnet, cabin, boot.
        Sedan => "sedan",
        /// Tall, long roof.
        Suv => "SUV",
        /// Open bed behind the cabin.
        Pickup => "pickup",
        /// One tall box.
        Van => "van",
        /// Low, cabin far back.
        Coupe => "coupe",
    }
}

impl Body {
    /// The name each maker sells this body under.
    pub fn model(self) -> &'static str {
        match self {
            Body::Hatchback => "Pip",
            Body::Sedan => "Major",
            Body::Suv => "Bison",
            Body::Pickup => "Mule",
            Body::Van => "Loaf",
            Body::Coupe => "Wisp",
        }
    }
}

worded! {
    /// Paint.
    Colour {
        /// Red.
        Red => "red",
        /// Orange.
        Orange => "orange",
        /// Yellow.
        Yellow => "yellow",
        /// Green.
        Green => "green",
        /// Teal.
        Teal => "teal",
        /// Blue.
        Blue => "blue",
        /// Purple.
        Purple => "purple",
        /// Pink.
        Pink => "pink",
        /// White.
        White => "white",
        /// Black.
        Black => "black",
    }
}

impl Colour {
    /// Red, green and blue of the paint in even light.
    pub(super) fn paint(self) -> [u8; 3] {
        match self {
            Colour::Red => [208, 44, 40],
            Colour::Orange => [238, 128, 34],
            Colour::Yellow => [244, 206, 52],
            Colour::Green => [58, 150, 72],
            Colour::Teal => [40, 160, 164],
            Colour::Blue => [44, 92, 196],
            Colour::Purple => [122, 66, 172],
            Colour::Pink => [238, 136, 176],
            Colour::White => [240, 240, 236],
            Colour::Black => [48, 50, 58],
        }
    }
}

worded! {
    /// Where it stands.
    Background {
        /// Houses behind a street.
        City => "city",
        /// Dunes and cacti.
        Desert => "desert",
        /// Fir trees.
        Forest => "forest",
        /// Water to the horizon.
        Sea => "sea",
        /// Peaks.
        Mountains => "mountains",
        /// White ground, falling flakes.
        Snow => "snow",
        /// Moon and stars.
        Night => "night",
        /// A plain wall.
        Studio => "studio",
    }
}

worded! {
    /// From where it is seen.
    Viewpoint {
        /// From the side, its nose to the left.
        Left => "left",
        /// From the side, its nose to the right.
        Right => "right",
        /// Its nose to the left, some of the front in sight.
        FrontLeft => "front left",
        /// Its nose to the right, some of the front in sight.
        FrontRight => "front right",
    }
}

impl Viewpoint {
    /// Whether the nose points to the left edge of the picture.
    pub fn faces_left(self) -> bool {
        matches!(self, Viewpoint::Left | Viewpoint::FrontLeft)
    }

    /// Whether some of the front is in sight.
    pub fn shows_front(self) -> bool {
        matches!(self, Viewpoint::FrontLeft | Viewpoint::FrontRight)
    }
}
