//! The report of a segmentation as a browser opens it: scores, threshold, masks, and a table that can be sorted.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::report::{Opened, chromium, opened_with_script};
use crate::training::on;
use crate::typed::DONE;

/// One white pixel.
const PNG: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg==";

/// A run as segmentation writes it: picture `n` has a Dice of `n` percent, and the first has no HD95.
fn draw_segmentation(run: &Path, num_images: u32) {
    let mut metrics = String::new();
    for step in 1..=40_u32 {
        let share = f64::from(step) / 40.0;
        let line = json!({
            "kind": "step", "step": step, "epoch": 1, "loss": 2.0 - share, "pixel": 1.0 - share / 2.0, "pixel_chance": 0.75,
            "overlap": 1.0 - share / 2.0, "overlap_chance": null,
            "gradient_norm": 1.5, "lr": 1e-3, "loss_scale": 1.0, "samples": 4, "samples_digest": "0", "seconds": 0.5, "waited_for_data": 0.0,
        });
        metrics += &format!("{line}\n");
        if step % 10 == 0 {
            let line = json!({
                "kind": "evaluation", "step": step, "epoch": 1, "on": "validation", "dice": share, "iou": share / 2.0, "hd95": 0.5,
                "threshold": 0.5, "best_threshold": 0.4, "dice_at_best_threshold": share, "pooled": {"dice": share, "auc": share}, "pictures": num_images, "skipped": 0, "seconds": 1.5,
            });
            metrics += &format!("{line}\n");
        }
    }
    fs::write(run.join("metrics.jsonl"), metrics).unwrap();
    let scores = |name: String, at: u32| {
        json!({
            "name": name, "dice": f64::from(at) / 100.0, "iou": 0.25, "sensitivity": 0.75, "specificity": 0.5, "precision": 0.5, "accuracy": 0.875,
            "mcc": 0.125, "auc": 0.9375, "hd95": if at == 0 { Value::Null } else { json!(6.25) }, "cldice": 0.5,
        })
    };
    let images: Vec<Value> = (0..num_images)
        .map(|at| scores(format!("test/Original/{at}_N.png"), at))
        .collect();
    let overlays: Vec<Value> = [("worst", 0.0), ("median", 0.5), ("best", 0.99)]
        .map(|(rank, dice)| {
            json!({
                "name": format!("<b>{rank}</b>.png"), "rank": rank, "dice": dice,
                "picture": PNG, "truth": PNG, "prediction": PNG, "difference": PNG,
            })
        })
        .into();
    let curve: Vec<(f64, f64)> = (1..100)
        .map(|at| f64::from(at) / 100.0)
        .map(|threshold| (threshold, 0.8 - (threshold - 0.4).powi(2)))
        .collect();
    let file = json!({
        "step": 30, "on": "validation", "protocol": "every picture at 512 x 512", "classes": ["background", "vessel"], "images": images,
        "mean": scores(String::new(), 50), "pooled": {"dice": 0.5, "auc": 0.9375}, "threshold": 0.4, "threshold_curve": curve,
        "overlays": overlays,
    });
    fs::write(run.join("segmentation.json"), file.to_string()).unwrap();
}

#[test]
fn a_segmentation_is_drawn_with_its_masks() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    draw_segmentation(folder.path(), 100);
    on("report", folder.path(), "").exits(DONE);
    let Some(chromium) = chromium() else {
        return;
    };
    let keys = "const pictures = document.querySelector('#segmentation table.classes'); \
         const first = () => pictures.querySelector('tbody tr').textContent; \
         root.dataset.least = first(); pictures.querySelectorAll('th button')[1].click(); root.dataset.most = first(); \
         const plots = document.querySelectorAll('#segmentation .plot'); \
         root.dataset.threshold = walk(plots[0], ['Home', 'ArrowRight']); \
         root.dataset.every = walk(plots[1], ['Home', 'End']);";
    let opened = opened_with_script(&chromium, &page, keys, "1600,1200");
    assert_eq!(opened.count("pictures"), 3 * 4);
    for words in [
        "Pixel loss",
        "Overlap loss",
        "Best Dice",
        "Every picture at 512 x 512.",
        "all pixels together",
        "Highest: 80.0% at 0.400",
        "in the truth alone",
        "in the prediction alone",
        "HD95, px",
        "&lt;b&gt;worst&lt;/b&gt;.png",
    ] {
        assert!(opened.dom.contains(words), "{words}");
    }
    let told = |name: &str| opened.told(name).unwrap();
    // Without an HD95: the cell is empty.
    assert_eq!(
        told("least"),
        "test/Original/0_N.png0.0%25.0%75.0%50.0%50.0%87.5%0.1250.93850.0%"
    );
    assert!(told("most").starts_with("test/Original/99_N.png99.0%"));
    assert!(
        told("threshold").contains("threshold 0.020"),
        "{}",
        told("threshold")
    );
    assert!(
        told("every").contains("100 of 100: test/Original/99_N.png"),
        "{}",
        told("every")
    );
}

#[test]
fn a_segmentation_fits_on_a_narrow_screen() {
    let folder = tempfile::tempdir().unwrap();
    draw_segmentation(folder.path(), 8);
    on("report", folder.path(), "").exits(DONE);
    let Some(chromium) = chromium() else {
        return;
    };
    let opened = Opened::open(&chromium, &folder.path().join("report.html"), "400,900");
    opened.is_clean();
    assert_eq!(opened.count("pictures"), 12);
}
