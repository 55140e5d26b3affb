//! Writes the parts of a video-text folder that transformers loads by themselves, for
//! `crates/train/tests/fixtures/check_video_text.py` to compare:
//!
//! ```text
//! cargo run --release -p holdall-models --example video_text_parts -- MODEL OUT
//! python crates/train/tests/fixtures/check_video_text.py MODEL GOLDEN OUT
//! ```

use std::error::Error;
use std::path::Path;

use holdall_models::folder::{ModelFolder, write_folder};
use holdall_models::model_config::ModelConfig;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, out] = arguments.as_slice() else {
        return Err("usage: video_text_parts MODEL OUT".into());
    };
    let folder = ModelFolder::open(Path::new(model))?;
    folder.check()?;
    let ModelConfig::VideoText(config) = folder.config() else {
        return Err(format!("{model}: {}", folder.config().describe()).into());
    };
    for part in config.parts() {
        let mut all = Vec::new();
        for tensor in &part.tensors {
            let mut values = vec![0.0; tensor.shape.iter().product()];
            folder.read_f32(&tensor.whole_name, &mut values)?;
            all.push((tensor, values));
        }
        let views: Vec<_> = all
            .iter()
            .map(|(tensor, values)| (tensor.name.clone(), tensor.shape.clone(), values.as_slice()))
            .collect();
        write_folder(
            &Path::new(out).join(part.folder),
            part.config,
            &views,
            None,
            None,
        )?;
    }
    Ok(())
}
