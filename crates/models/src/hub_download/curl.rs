//! The system's `curl`, configured through its standard input: a token on a command line would be visible to every user of the machine.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::listing::RemoteFile;
use super::{DownloadError, Watcher};
use crate::hub_cache::ModelName;

/// Size limit of a file listing.
const MOST_LISTING_BYTES: u64 = 64 << 20;
/// Interval between progress reports.
const GLANCE: Duration = Duration::from_millis(100);
/// Exit code of `curl` where a server cannot resume a file.
const CANNOT_CONTINUE: i32 = 33;
/// Part of `curl`'s message where the server has no bytes past the end of the partial file.
const NOTHING_BEHIND: &str = "error: 416";

pub(super) struct Curl<'a> {
    /// Sent to the endpoint's host only: `curl` drops it on redirects to other hosts.
    pub token: Option<String>,
    /// Whether the endpoint is `http://`, such as a local server; otherwise only TLS is allowed.
    pub is_plain: bool,
    pub model: &'a ModelName,
    pub stop: &'a AtomicBool,
}

impl Curl<'_> {
    /// Downloads a short answer.
    pub fn read(&self, url: &str) -> Result<String, DownloadError> {
        let mut child = self.start(url, &[format!("max-filesize = {MOST_LISTING_BYTES}")])?;
        let mut answer = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            let read = stdout.take(MOST_LISTING_BYTES).read_to_end(&mut answer);
            read.map_err(|cause| self.broken(url, cause))?;
        }
        match self.finish(child, url)? {
            Ok(()) => Ok(String::from_utf8_lossy(&answer).into_owned()),
            Err((_, words)) => Err(self.refused(url, &words)),
        }
    }

    /// Downloads a file, resuming a partial one.
    pub fn save(
        &self,
        url: &str,
        to: &Path,
        file: &RemoteFile,
        watcher: &mut dyn Watcher,
    ) -> Result<(), DownloadError> {
        let bytes = || fs::metadata(to).map_or(0, |data| data.len());
        // A partial file that is too long belongs to another version; a complete one needs no download.
        match file.size {
            Some(size) if bytes() > size => drop(fs::remove_file(to)),
            Some(size) if size > 0 && bytes() == size => return Ok(()),
            _ => {}
        }
        let mut tries = 0;
        loop {
            let options = [
                format!("output = {}", quoted(&to.to_string_lossy())),
                "continue-at = -".to_owned(),
            ];
            let mut child = self.start(url, &options)?;
            while let Ok(None) = child.try_wait() {
                if self.stop.load(Ordering::Relaxed) {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(DownloadError::Stopped);
                }
                watcher.progress(&file.name, bytes(), file.size.unwrap_or(0));
                thread::sleep(GLANCE);
            }
            let finished = self.finish(child, url)?;
            watcher.progress(&file.name, bytes(), file.size.unwrap_or(0));
            match finished {
                Ok(()) => {
                    // curl creates no file for an empty answer.
                    if bytes() == 0 {
                        fs::write(to, b"").map_err(super::disk(to))?;
                    }
                    return Ok(());
                }
                Err((code, words))
                    if tries == 0
                        && (code == CANNOT_CONTINUE || words.contains(NOTHING_BEHIND)) =>
                {
                    tries += 1;
                    holdall_files::remove_file(to).map_err(super::disk(to))?;
                }
                Err((_, words)) => return Err(self.refused(url, &words)),
            }
        }
    }

    fn start(&self, url: &str, options: &[String]) -> Result<Child, DownloadError> {
        let child = Command::new("curl")
            // A user's own curlrc could redirect the output or add messages.
            .args(["--disable", "--config", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|cause| DownloadError::NoCurl {
            cause,
            name: self.model.to_string(),
        })?;
        let mut lines = vec![
            format!("url = {}", quoted(url)),
            "silent".to_owned(),
            "show-error".to_owned(),
            "fail".to_owned(),
            "location".to_owned(),
            "globoff".to_owned(),
            "connect-timeout = 30".to_owned(),
            // A connection without data for a minute is given up.
            "speed-limit = 1".to_owned(),
            "speed-time = 60".to_owned(),
            "retry = 3".to_owned(),
            format!("user-agent = \"holdall/{}\"", env!("CARGO_PKG_VERSION")),
        ];
        let protocols = if self.is_plain {
            "=http,https"
        } else {
            "=https"
        };
        lines.extend(["proto", "proto-redir"].map(|key| format!("{key} = \"{protocols}\"")));
        if let Some(token) = &self.token {
            lines.push(format!(
                "header = {}",
                quoted(&format!("Authorization: Bearer {token}"))
            ));
        }
        lines.extend_from_slice(options);
        if let Some(mut stdin) = child.stdin.take() {
            let written = stdin.write_all(format!("{}\n", lines.join("\n")).as_bytes());
            written.map_err(|cause| self.broken(url, cause))?;
        }
        Ok(child)
    }

    /// Waits for `curl`; on failure returns its exit code and message.
    fn finish(&self, child: Child, url: &str) -> Result<Result<(), (i32, String)>, DownloadError> {
        let output = child
            .wait_with_output()
            .map_err(|cause| self.broken(url, cause))?;
        if self.stop.load(Ordering::Relaxed) {
            return Err(DownloadError::Stopped);
        }
        Ok(if output.status.success() {
            Ok(())
        } else {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err((output.status.code().unwrap_or(-1), words))
        })
    }

    fn broken(&self, url: &str, cause: io::Error) -> DownloadError {
        self.refused(url, &cause.to_string())
    }

    fn refused(&self, url: &str, words: &str) -> DownloadError {
        let words = words.lines().last().unwrap_or_default();
        let is = |code: &str| words.contains(&format!("error: {code}"));
        let hint = if is("401") || is("403") {
            "accept its terms on its page if it has any, then set HF_TOKEN to a token that may read it"
        } else if is("404") {
            "check the name, and --revision if one is given; private models need HF_TOKEN"
        } else if is("429") || is("5") {
            "the server is busy: run the same command again in a while"
        } else if words.contains("remaining to read") {
            "the connection was lost: the same command goes on from there"
        } else {
            "is there a network? https_proxy names a proxy, HF_ENDPOINT another server"
        };
        DownloadError::Server {
            url: url.to_owned(),
            found: words.trim_start_matches("curl: ").to_owned(),
            hint: hint.to_owned(),
        }
    }
}

/// Quotes a text for curl's config format.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_ends_its_line_or_its_quotes() {
        assert_eq!(quoted("a\"b\\c\nurl = x"), "\"a\\\"b\\\\c\\nurl = x\"");
    }
}
