//! The report of captions as a browser opens it: scores, frames beside each other, truth and what the model said.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::report::{Opened, chromium};
use crate::training::on;
use crate::typed::DONE;

/// One white pixel.
const PNG: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg==";

/// A run with one evaluation, whose best captions are right.
fn draw_captions(run: &Path) {
    let step = json!({
        "kind": "step", "step": 1, "epoch": 1, "loss": 2.0, "contrastive": 1.0, "contrastive_chance": 2.0, "caption": 1.0, "caption_chance": null,
        "gradient_norm": 1.5, "lr": 1e-3, "loss_scale": 1.0, "samples": 4, "samples_digest": "0", "seconds": 0.5, "waited_for_data": 0.0,
    });
    fs::write(run.join("metrics.jsonl"), format!("{step}\n")).unwrap();
    let clip = |at: usize, caption: &str| {
        json!({
            "name": format!("clips/<b>{at}</b>"), "frames": [PNG, PNG, PNG, PNG], "truth": "a red square moves left", "caption": caption,
            "bleu4": 0.5, "rank": at,
        })
    };
    let best: Vec<Value> = (1..=3)
        .map(|at| clip(at, "a red square moves left"))
        .collect();
    let worst: Vec<Value> = (4..=6).map(|at| clip(at, "a blue <circle>")).collect();
    let file = json!({
        "step": 120, "on": "validation", "protocol": "512 of 2,000 clips, greedy, 64 tokens",
        "scores": {"bleu1": 0.75, "bleu4": 0.5, "rouge_l": 0.625, "cider_d": 3.25, "perplexity": 1.5}, "best": best, "worst": worst,
    });
    fs::write(run.join("captions.json"), file.to_string()).unwrap();
}

#[test]
fn captions_are_shown_with_their_frames() {
    let folder = tempfile::tempdir().unwrap();
    draw_captions(folder.path());
    on("report", folder.path(), "").exits(DONE);
    let Some(chromium) = chromium() else {
        return;
    };
    for size in ["1600,1200", "400,900"] {
        let opened = Opened::open(&chromium, &folder.path().join("report.html"), size);
        opened.is_clean();
        assert_eq!(opened.count("pictures"), 6 * 4);
        for words in [
            "512 of 2,000 clips, greedy, 64 tokens.",
            "after step 120",
            "BLEU-4",
            "CIDEr-D",
            "perplexity",
            "Best clips",
            "Worst clips",
            "rank 4",
            "a blue &lt;circle&gt;",
            "clips/&lt;b&gt;6&lt;/b&gt;",
        ] {
            assert!(opened.dom.contains(words), "{words}");
        }
    }
}
