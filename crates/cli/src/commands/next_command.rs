//! Composes the follow-up command for the user: the typed options on other data, with the same rows, captions and labels.

use std::path::Path;

use holdall_train::config::TaskName;

use crate::invocation::{program, quoted};
use crate::options::{TaskArgument, is_yaml};

/// The data options that the user typed.
pub(super) struct Typed<'a> {
    /// A config file, or the data itself.
    pub(super) target: Option<&'a str>,
    pub(super) sets: &'a [String],
    pub(super) task: Option<TaskArgument>,
    pub(super) seed: Option<u64>,
}

impl Typed<'_> {
    /// `holdall train` on `data` instead of the typed target, without keys for which `is_replaced` holds, plus the settings in `more`.
    pub(super) fn train(
        &self,
        data: &Path,
        is_replaced: impl Fn(&str) -> bool,
        more: &[String],
    ) -> String {
        let mut words = vec![program(), "train".to_owned()];
        match self.target.filter(|target| is_yaml(target)) {
            Some(config) => {
                let data = format!("data.train={}", data.display());
                words.push(quoted(Path::new(config)));
                words.extend(["--set".to_owned(), shell_word(&data)]);
            }
            None => words.push(quoted(data)),
        }
        self.push_options(&mut words, |key| key == "data.train" || is_replaced(key));
        for set in more {
            words.extend(["--set".to_owned(), shell_word(set)]);
        }
        words.join(" ")
    }

    /// Another command on the same data.
    pub(super) fn same(&self, command: &str) -> String {
        let mut words = vec![program(), command.to_owned()];
        words.extend(self.target.map(|target| quoted(Path::new(target))));
        self.push_options(&mut words, |_| false);
        words.join(" ")
    }

    fn push_options(&self, words: &mut Vec<String>, is_left_out: impl Fn(&str) -> bool) {
        if let Some(task) = self.task {
            words.extend(["--task".to_owned(), TaskName::from(task).name().to_owned()]);
        }
        if let Some(seed) = self.seed {
            words.extend(["--seed".to_owned(), seed.to_string()]);
        }
        for set in self.sets {
            let key = set.split('=').next().unwrap_or_default().trim();
            if !is_left_out(key) {
                words.extend(["--set".to_owned(), shell_word(set)]);
            }
        }
    }
}

fn shell_word(text: &str) -> String {
    quoted(Path::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_is_typed_again() {
        let sets = [
            "data.caption=a {make} car".to_owned(),
            "data.validation={column: Split}".to_owned(),
            "data.image=photo".to_owned(),
        ];
        let typed = Typed {
            target: Some("cars.yml"),
            sets: &sets,
            task: None,
            seed: Some(7),
        };
        let line = typed.train(Path::new("my shards"), |key| key == "data.image", &[]);
        assert!(
            line.ends_with(
                " train cars.yml --set 'data.train=my shards' --seed 7 --set 'data.caption=a {make} car' \
                 --set 'data.validation={column: Split}'"
            ),
            "{line}"
        );
        let typed = Typed {
            target: Some("cars.csv"),
            task: Some(TaskArgument::VideoText),
            sets: &[],
            seed: None,
        };
        let more = ["data.frames=16".to_owned()];
        let line = typed.train(Path::new("cars_filtered.csv"), |_| false, &more);
        assert!(
            line.ends_with(" train cars_filtered.csv --task video-text --set data.frames=16"),
            "{line}"
        );
        assert!(
            typed
                .same("data clean")
                .ends_with(" data clean cars.csv --task video-text")
        );
    }
}
