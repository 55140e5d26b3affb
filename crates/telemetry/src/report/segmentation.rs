//! `segmentation.json`: scores, threshold curve and overlays, limited to what a page can show.

use serde::{Deserialize, Serialize};

/// Rows in the table of pictures.
const MAX_IMAGES: usize = 2000;
/// Points of the threshold curve.
const MAX_POINTS: usize = 200;
const MAX_CLASSES: usize = 200;
/// Overlays per rank.
const MAX_OVERLAYS: usize = 3;
/// Length of a picture's data URI.
const MAX_URI_BYTES: usize = 2 << 20;

/// Contents of `segmentation.json`, which is written at every best evaluation.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Segmentation {
    /// Completed optimizer steps.
    pub step: Option<u64>,
    /// Evaluated samples.
    on: Option<String>,
    /// Evaluation protocol: sizes, field of view, threshold.
    protocol: Option<String>,
    classes: Vec<String>,
    images: Vec<ImageRow>,
    /// Number of pictures that are not in the table.
    left_out: usize,
    /// Means over pictures.
    mean: Option<Scores>,
    /// Scores over the pixels of all pictures.
    pooled: Option<Scores>,
    per_class: Vec<ClassRow>,
    threshold: Option<f64>,
    /// Threshold and Dice.
    threshold_curve: Vec<(f64, Option<f64>)>,
    overlays: Vec<Overlay>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Scores {
    dice: Option<f64>,
    iou: Option<f64>,
    sensitivity: Option<f64>,
    specificity: Option<f64>,
    precision: Option<f64>,
    accuracy: Option<f64>,
    mcc: Option<f64>,
    auc: Option<f64>,
    hd95: Option<f64>,
    cldice: Option<f64>,
}

#[derive(Deserialize, Serialize)]
struct ImageRow {
    name: String,
    #[serde(flatten)]
    scores: Scores,
}

#[derive(Deserialize, Serialize)]
struct ClassRow {
    class: String,
    #[serde(flatten)]
    scores: Scores,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Rank {
    Best,
    Median,
    Worst,
}

/// Data URIs of a picture, its true mask, its prediction and their difference.
#[derive(Deserialize, Serialize)]
struct Overlay {
    name: String,
    rank: Rank,
    dice: Option<f64>,
    #[serde(default)]
    picture: Option<String>,
    #[serde(default)]
    truth: Option<String>,
    #[serde(default)]
    prediction: Option<String>,
    #[serde(default)]
    difference: Option<String>,
}

impl Segmentation {
    /// Limits rows, points and pictures to what a page can show.
    pub fn bounded(mut self) -> Segmentation {
        self.left_out += self.images.len().saturating_sub(MAX_IMAGES);
        self.images.truncate(MAX_IMAGES);
        self.classes.truncate(MAX_CLASSES);
        self.per_class.truncate(MAX_CLASSES);
        let step = self.threshold_curve.len().div_ceil(MAX_POINTS).max(1);
        self.threshold_curve = self.threshold_curve.into_iter().step_by(step).collect();
        for rank in [Rank::Best, Rank::Median, Rank::Worst] {
            let mut room = MAX_OVERLAYS;
            self.overlays.retain(|overlay| {
                let is_kept = overlay.rank != rank || room > 0;
                room -= usize::from(overlay.rank == rank && is_kept);
                is_kept
            });
        }
        for overlay in &mut self.overlays {
            let Overlay {
                picture,
                truth,
                prediction,
                difference,
                ..
            } = overlay;
            for uri in [picture, truth, prediction, difference] {
                *uri = uri.take().filter(|uri| is_picture(uri));
            }
        }
        self
    }
}

/// Whether a URI contains a picture: the page must not fetch anything.
pub(super) fn is_picture(uri: &str) -> bool {
    let bytes = ["data:image/png;base64,", "data:image/jpeg;base64,"]
        .iter()
        .find_map(|start| uri.strip_prefix(start));
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    uri.len() <= MAX_URI_BYTES && bytes.is_some_and(|bytes| bytes.bytes().all(is_base64))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_has_so_many_rows_and_pictures_and_none_from_elsewhere() {
        let images: Vec<_> = (0..2005)
            .map(|at| json!({"name": format!("{at}.png"), "dice": 0.5, "hd95": null}))
            .collect();
        let png = "data:image/png;base64,AAA=";
        let overlay = |rank: &str| json!({"name": "a", "rank": rank, "dice": 0.5, "picture": png, "truth": "https://elsewhere/a.png"});
        let overlays: Vec<_> = [
            "worst", "best", "best", "median", "best", "best", "best", "worst",
        ]
        .map(overlay)
        .into();
        let curve: Vec<_> = (0..999)
            .map(|at| json!([f64::from(at) / 999.0, 0.5]))
            .collect();
        let file = json!({"step": 3, "images": images, "overlays": overlays, "threshold_curve": curve, "mean": {"dice": 0.5}});
        let file: Segmentation = serde_json::from_value(file).unwrap();
        let bounded = file.bounded();
        assert_eq!((bounded.images.len(), bounded.left_out), (2000, 5));
        assert!(bounded.threshold_curve.len() <= 200);
        let ranks: Vec<Rank> = bounded.overlays.iter().map(|one| one.rank).collect();
        use Rank::{Best, Median, Worst};
        assert_eq!(ranks, [Worst, Best, Best, Median, Best, Worst]);
        assert_eq!(bounded.overlays[0].picture.as_deref(), Some(png));
        assert_eq!(bounded.overlays[0].truth, None);
    }
}
