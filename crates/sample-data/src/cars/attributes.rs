//! Attributes of a car, and their words in captions and labels.

/// Declares an enum with a list of all its values and a word for each.
macro_rules! worded {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident => $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $value,)*
        }

        impl $name {
            pub const ALL: &'static [$name] = &[$($name::$value,)*];

            /// The word in captions and labels.
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$value => $word,)*
                }
            }
        }
    };
}

worded! {
    /// The car's maker; all are invented.
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
    /// Body style.
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
    /// Model name of this body; the same for every make.
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
    Colour {
        Red => "red",
        Orange => "orange",
        Yellow => "yellow",
        Green => "green",
        Teal => "teal",
        Blue => "blue",
        Purple => "purple",
        Pink => "pink",
        White => "white",
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
    /// Background of the picture.
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
    /// Side of the car that the picture shows.
    Viewpoint {
        /// Side view, nose to the left.
        Left => "left",
        /// Side view, nose to the right.
        Right => "right",
        /// Nose to the left, the front partly visible.
        FrontLeft => "front left",
        /// Nose to the right, the front partly visible.
        FrontRight => "front right",
    }
}

impl Viewpoint {
    pub fn faces_left(self) -> bool {
        matches!(self, Viewpoint::Left | Viewpoint::FrontLeft)
    }

    pub fn shows_front(self) -> bool {
        matches!(self, Viewpoint::FrontLeft | Viewpoint::FrontRight)
    }
}
