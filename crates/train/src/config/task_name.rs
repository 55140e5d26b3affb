//! The tasks by name.

use serde::{Deserialize, Serialize};

/// A model that suits the task.
pub const AUTO_MODEL: &str = "auto";

/// What kind of model and loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TaskName {
    /// Pictures and captions, with an optional label head.
    Clip,
    /// Pictures and labels, or numbers.
    Classify,
    /// Pictures and masks.
    Segment,
    /// Clips and texts.
    #[serde(rename = "video-text")]
    VideoText,
}

impl TaskName {
    /// As the user writes it.
    pub fn name(self) -> &'static str {
        match self {
            TaskName::Clip => "clip",
            TaskName::Classify => "classify",
            TaskName::Segment => "segment",
            TaskName::VideoText => "video-text",
        }
    }

    /// The task of that name.
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
