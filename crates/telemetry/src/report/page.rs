//! Renders the page: markup, style and scripts of this folder, and the data, in one string.

use holdall_files::{FNV_START, fnv1a};

use super::run::RunPage;

const MARKUP: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// In loading order.
const SCRIPTS: [&str; 11] = [
    include_str!("words.js"),
    include_str!("chart.js"),
    include_str!("arena.js"),
    include_str!("predictions.js"),
    include_str!("confusion.js"),
    include_str!("segmentation.js"),
    include_str!("captions.js"),
    include_str!("curve.js"),
    include_str!("processes.js"),
    include_str!("sections.js"),
    include_str!("page.js"),
];

/// Renders the page of `runs`.
pub fn render(runs: &[RunPage]) -> String {
    let data = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "runs": runs,
    });
    // User texts cannot contain `</script>` or `<!--` after this.
    let data = data.to_string().replace('<', "\\u003c");
    let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    // A digest of all data: a script hidden in a text of the run cannot know it.
    let nonce = format!("{:016x}", fnv1a(FNV_START, data.as_bytes()));
    let mut html = String::with_capacity(data.len() + 100_000);
    let mut rest = MARKUP;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").expect("the page's own markup");
        html.push_str(before);
        match name {
            "title" => html.push_str(&escaped(&names.join(", "))),
            "nonce" => html.push_str(&nonce),
            "style" => html.push_str(STYLE),
            "script" => SCRIPTS.iter().for_each(|script| html.push_str(script)),
            "data" => html.push_str(&data),
            other => unreachable!("the page has no `{other}`"),
        }
        rest = after;
    }
    html.push_str(rest);
    html
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
