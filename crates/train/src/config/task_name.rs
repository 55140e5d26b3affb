//! The tasks by name.

use serde::{Deserialize, Serialize};

/// Value of `model:` that takes the default model of the task.
pub const AUTO_MODEL: &str = "auto";

/// Kind of model and loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskName {
    /// Pictures and captions, with an optional label head.
    Clip,
    /// Pictures and labels, or numbers.
    Classify,
    /// Pictures and masks.
    Segment,
    /// Video clips and texts.
    #[serde(rename = "video-text")]
    VideoText,
}

impl TaskName {
    /// The name in configs and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            TaskName::Clip => "clip",
            TaskName::Classify => "classify",
            TaskName::Segment => "segment",
            TaskName::VideoText => "video-text",
        }
    }

    pub(crate) fn by_name(name: &str) -> Option<TaskName> {
        let all = [
            TaskName::Clip,
            TaskName::Classify,
            TaskName::Segment,
            TaskName::VideoText,
        ];
        all.into_iter().find(|task| task.name() == name)
    }
}
