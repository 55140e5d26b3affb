//! Shapes drawn onto pixels: a thin layer over the rasteriser, in the units of its transform.

use tiny_skia::{
    Color, FillRule, GradientStop, LineCap, LineJoin, LinearGradient, Paint, Path, PathBuilder,
    Pixmap, Point, Rect, Shader, SpreadMode, Stroke, Transform,
};

/// Red, green, blue.
pub(super) type Rgb = [u8; 3];

/// A point in the canvas's units.
pub(super) type Spot = (f32, f32);

/// Pixels, and the transform from drawing units to pixels.
pub(super) struct Canvas {
    pixmap: Pixmap,
    transform: Transform,
}

impl Canvas {
    /// A black square whose units are its own side: (0, 0) top left, (1, 1) bottom right.
    pub(super) fn new(side: u32) -> Canvas {
        Canvas {
            pixmap: Pixmap::new(side, side).expect("a side clamped to a valid range"),
            transform: Transform::from_scale(side as f32, side as f32),
        }
    }

    /// Runs `drawing` in other units: `inner` maps them to the present ones.
    pub(super) fn within(&mut self, inner: Transform, drawing: impl FnOnce(&mut Canvas)) {
        let outer = self.transform;
        self.transform = outer.pre_concat(inner);
        drawing(self);
        self.transform = outer;
    }

    pub(super) fn fill(&mut self, path: &Option<Path>, colour: Rgb) {
        self.fill_with(path, Shader::SolidColor(opaque(colour)));
    }

    /// Blends the colour in with opacity `strength`, 0 to 1.
    pub(super) fn tint(&mut self, path: &Option<Path>, colour: Rgb, strength: f32) {
        self.fill_with(path, Shader::SolidColor(see_through(colour, strength)));
    }

    /// Fills with a linear gradient from one colour at `from` to another at `to`.
    pub(super) fn fade(&mut self, path: &Option<Path>, from: (Spot, Rgb), to: (Spot, Rgb)) {
        let stops = vec![
            GradientStop::new(0.0, opaque(from.1)),
            GradientStop::new(1.0, opaque(to.1)),
        ];
        let (start, end) = (Point::from(from.0), Point::from(to.0));
        if let Some(shader) =
            LinearGradient::new(start, end, stops, SpreadMode::Pad, Transform::identity())
        {
            self.fill_with(path, shader);
        }
    }

    pub(super) fn outline(&mut self, path: &Option<Path>, width: f32, colour: Rgb) {
        let stroke = Stroke {
            width,
            line_cap: LineCap::Round,
            line_join: LineJoin::Round,
            ..Stroke::default()
        };
        if let Some(path) = path {
            let paint = smooth(Shader::SolidColor(opaque(colour)));
            self.pixmap
                .stroke_path(path, &paint, &stroke, self.transform, None);
        }
    }

    fn fill_with(&mut self, path: &Option<Path>, shader: Shader) {
        if let Some(path) = path {
            self.pixmap.fill_path(
                path,
                &smooth(shader),
                FillRule::Winding,
                self.transform,
                None,
            );
        }
    }

    /// Red, green, blue of every pixel, row by row from the top.
    pub(super) fn into_pixels(self) -> Vec<u8> {
        let pixels = self.pixmap.pixels().iter();
        pixels
            .flat_map(|pixel| [pixel.red(), pixel.green(), pixel.blue()])
            .collect()
    }
}

fn smooth(shader: Shader) -> Paint {
    Paint {
        shader,
        anti_alias: true,
        ..Paint::default()
    }
}

fn opaque([red, green, blue]: Rgb) -> Color {
    Color::from_rgba8(red, green, blue, 255)
}

fn see_through([red, green, blue]: Rgb, strength: f32) -> Color {
    Color::from_rgba8(red, green, blue, (strength.clamp(0.0, 1.0) * 255.0) as u8)
}

/// `share` of the second colour, the rest of the first.
pub(super) fn blend(first: Rgb, second: Rgb, share: f32) -> Rgb {
    std::array::from_fn(|i| {
        let (a, b) = (f32::from(first[i]), f32::from(second[i]));
        (a + (b - a) * share).round().clamp(0.0, 255.0) as u8
    })
}

pub(super) fn circle((x, y): Spot, radius: f32) -> Option<Path> {
    PathBuilder::from_circle(x, y, radius)
}

pub(super) fn oval((x, y): Spot, (wide, high): Spot) -> Option<Path> {
    PathBuilder::from_oval(Rect::from_xywh(x - wide, y - high, 2.0 * wide, 2.0 * high)?)
}

/// From two opposite corners.
pub(super) fn rectangle((left, top): Spot, (right, bottom): Spot) -> Option<Path> {
    Some(PathBuilder::from_rect(Rect::from_ltrb(
        left, top, right, bottom,
    )?))
}

pub(super) fn line(from: Spot, to: Spot) -> Option<Path> {
    let mut builder = PathBuilder::new();
    builder.move_to(from.0, from.1);
    builder.line_to(to.0, to.1);
    builder.finish()
}

pub(super) fn polygon(corners: &[Spot]) -> Option<Path> {
    let mut builder = PathBuilder::new();
    let (first, rest) = corners.split_first()?;
    builder.move_to(first.0, first.1);
    for corner in rest {
        builder.line_to(corner.0, corner.1);
    }
    builder.close();
    builder.finish()
}

/// A polygon whose corners are cut back by at most `radius` and bridged by a curve.
pub(super) fn rounded(corners: &[Spot], radius: f32) -> Option<Path> {
    let mut builder = PathBuilder::new();
    for (i, &corner) in corners.iter().enumerate() {
        let before = corners[(i + corners.len() - 1) % corners.len()];
        let after = corners[(i + 1) % corners.len()];
        let (start, end) = (
            towards(corner, before, radius),
            towards(corner, after, radius),
        );
        if i == 0 {
            builder.move_to(start.0, start.1);
        } else {
            builder.line_to(start.0, start.1);
        }
        builder.quad_to(corner.0, corner.1, end.0, end.1);
    }
    builder.close();
    builder.finish()
}

/// The point `distance` from one spot towards another, half-way at most.
fn towards(from: Spot, to: Spot, distance: f32) -> Spot {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy).max(1e-6);
    let share = (distance / length).min(0.5);
    (from.0 + dx * share, from.1 + dy * share)
}
