//! Measurements that are stored on disk: algorithms and profiles, as lines of text. A file that cannot be read or written is ignored.

use std::path::PathBuf;

use super::compile::cache_folder;
use super::libraries::driver_version;
use super::product::Products;
use super::profile::Profile;
use super::{Arithmetic, Cuda};

impl Cuda {
    /// Identity of card, driver and product library, for which measurements are valid.
    pub fn identity(&self) -> Option<String> {
        let characters = self.name.chars();
        let card: String = characters
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let (major, minor) = driver_version()?;
        Some(format!("{card}-{major}.{minor}-{}", Products::version()))
    }
}

fn file(cuda: &Cuda, what: &str) -> Option<PathBuf> {
    Some(cache_folder()?.join(format!("{what}-{}.txt", cuda.identity()?)))
}

fn write(path: Option<PathBuf>, text: &str) {
    let Some(path) = path else { return };
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    // A file that cannot be written is measured again by the next process.
    let _ = folder.and_then(|()| holdall_files::write_shared(&path, text.as_bytes()));
}

pub(super) fn algorithms_to_text(chosen: &[(String, [u64; 8])]) -> String {
    let lines = chosen.iter().map(|(key, data)| {
        let words: Vec<String> = data.iter().map(|word| format!("{word:x}")).collect();
        format!("{key}\t{}\n", words.join(" "))
    });
    lines.collect()
}

pub(super) fn algorithms_from_text(text: &str) -> Vec<(String, [u64; 8])> {
    let line = |line: &str| {
        let (key, words) = line.split_once('\t')?;
        if key.starts_with(CONVOLUTION) {
            return None;
        }
        let words: Vec<u64> = words
            .split(' ')
            .map(|word| u64::from_str_radix(word, 16).ok())
            .collect::<Option<_>>()?;
        Some((key.to_owned(), words.try_into().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// Prefix of the lines of convolutions, which no line of a product has.
const CONVOLUTION: &str = "convolution ";

pub(super) fn engines_to_text(chosen: &[(String, String)]) -> String {
    let lines = chosen.iter();
    lines
        .map(|(key, engine)| format!("{CONVOLUTION}{key}\t{engine}\n"))
        .collect()
}

pub(super) fn engines_from_text(text: &str) -> Vec<(String, String)> {
    let line = |line: &str| {
        let (key, engine) = line.strip_prefix(CONVOLUTION)?.split_once('\t')?;
        Some((key.to_owned(), engine.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

/// Reads the algorithms that earlier processes stored, for shapes that have none yet.
pub(super) fn read_algorithms(cuda: &Cuda) {
    let text = file(cuda, "algorithms").and_then(|path| std::fs::read_to_string(path).ok());
    cuda.prefer_algorithms(&text.unwrap_or_default());
}

/// Stores the algorithms, merged with those that other processes have stored in the meantime.
pub(super) fn write_algorithms(cuda: &Cuda) {
    read_algorithms(cuda);
    write(file(cuda, "algorithms"), &cuda.algorithms());
}

fn profile_file(cuda: &Cuda, arithmetic: Arithmetic) -> Option<PathBuf> {
    file(cuda, &format!("profile-{}", arithmetic.name()))
}

pub(super) fn read_profile(cuda: &Cuda, arithmetic: Arithmetic) -> Option<Profile> {
    let text = std::fs::read_to_string(profile_file(cuda, arithmetic)?).ok()?;
    let numbers: Vec<f64> = text
        .split_whitespace()
        .map(|word| word.parse().ok().filter(|&rate: &f64| rate > 0.0))
        .collect::<Option<_>>()?;
    let [flops, bytes, seconds, link_bytes] = numbers.try_into().ok()?;
    Some(Profile {
        flops_per_second: flops,
        bytes_per_second: bytes,
        seconds_per_kernel: seconds,
        link_bytes_per_second: link_bytes,
    })
}

pub(super) fn write_profile(cuda: &Cuda, arithmetic: Arithmetic, profile: &Profile) {
    let Profile {
        flops_per_second,
        bytes_per_second,
        seconds_per_kernel,
        link_bytes_per_second,
    } = profile;
    let text = format!(
        "{flops_per_second:e} {bytes_per_second:e} {seconds_per_kernel:e} {link_bytes_per_second:e}\n"
    );
    write(profile_file(cuda, arithmetic), &text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn algorithms_read_back_and_broken_lines_are_left_out() {
        let chosen = vec![
            ("[1, 2, 3] Bf16".to_owned(), [1, 2, 3, 4, 5, 6, 7, u64::MAX]),
            ("[4, 5, 6] F32".to_owned(), [0; 8]),
        ];
        let text = algorithms_to_text(&chosen) + "no tab\nshort\t1 2\nodd\t1 2 3 4 5 6 7 zz\n";
        assert_eq!(algorithms_from_text(&text), chosen);
        let engines = vec![("Output [1, 8, 8, 3]/8".to_owned(), "62 2=4 13=0".to_owned())];
        let both = text + &engines_to_text(&engines);
        assert_eq!(engines_from_text(&both), engines);
        assert_eq!(algorithms_from_text(&both), chosen);
    }
}
