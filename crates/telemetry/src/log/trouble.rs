//! Error messages of tools in a log of any format: `GPU is lost`, `ERR!`, an Xid, `CUDA out of memory`. Such lines are rarely
//! samples, and would otherwise be skipped as unreadable.

use serde::Serialize;

/// Kind of an error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Trouble {
    /// The driver cannot reach the GPU or a part of it.
    Gpu,
    /// A kernel or a CUDA call failed.
    Cuda,
    /// An allocation failed.
    OutOfMemory,
}

/// The error messages of one kind.
#[derive(Clone, Debug)]
pub(crate) struct TroubleLines {
    pub what: Trouble,
    /// Line number of the first message, from 1.
    pub first_line: u64,
    pub text: String,
    pub count: u64,
    /// Step of the last sample before the first message.
    pub step: Option<u64>,
}

/// Phrases in lower case. The search looks at bytes that are not letters only, because most lines have few.
const PHRASES: [(&[u8], Trouble); 20] = [
    (b"out of memory", Trouble::OutOfMemory),
    (b"cuda_error_out_of_memory", Trouble::OutOfMemory),
    (b"outofmemoryerror:", Trouble::OutOfMemory),
    (b"gpu is lost", Trouble::Gpu),
    (b"gpu requires reset", Trouble::Gpu),
    (b"unable to determine the device handle", Trouble::Gpu),
    (b"fallen off the bus", Trouble::Gpu),
    (b"no devices were found", Trouble::Gpu),
    (b"failed to initialize nvml", Trouble::Gpu),
    (b"couldn't communicate with the nvidia driver", Trouble::Gpu),
    (b"uncorrectable ecc error", Trouble::Gpu),
    (b"err!", Trouble::Gpu),
    (b"unknown error]", Trouble::Gpu),
    (b"xid (", Trouble::Gpu),
    (b"xid:", Trouble::Gpu),
    (b"xid error", Trouble::Gpu),
    (b"cuda error", Trouble::Cuda),
    (b"cuda_error_", Trouble::Cuda),
    (b"illegal memory access", Trouble::Cuda),
    (b"device-side assert", Trouble::Cuda),
];

/// Kind of the error in a line, if any. Earlier phrases take precedence, so that an out-of-memory error is not reported as a CUDA
/// error.
pub(super) fn trouble(line: &[u8]) -> Option<Trouble> {
    let mut found: Option<usize> = None;
    for (at, byte) in line.iter().enumerate() {
        if !matches!(byte, b' ' | b'!' | b'_' | b':' | b'\'' | b'-') {
            continue;
        }
        let phrases = &PHRASES[..found.unwrap_or(PHRASES.len())];
        found = phrases
            .iter()
            .position(|(phrase, _)| stands_at(line, at, phrase))
            .or(found);
    }
    found.map(|at| PHRASES[at].1)
}

/// Whether `phrase` is in the line such that its first non-letter is at `at`.
fn stands_at(line: &[u8], at: usize, phrase: &[u8]) -> bool {
    let anchor = phrase
        .iter()
        .position(|byte| !byte.is_ascii_alphabetic())
        .unwrap_or(0);
    let Some(start) = at.checked_sub(anchor) else {
        return false;
    };
    let is_it = |part: &[u8]| part.eq_ignore_ascii_case(phrase);
    // Whole words only: `taxid: 3` is not an Xid.
    let is_word = start == 0 || !line[start - 1].is_ascii_alphanumeric();
    is_word && line.get(start..start + phrase.len()).is_some_and(is_it)
}

/// The beginning of a line, without control characters.
pub(super) fn excerpt(line: &[u8]) -> String {
    const LONGEST: usize = 160;
    let text = String::from_utf8_lossy(&line[..line.len().min(4 * LONGEST)]);
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut out: String = clean.take(LONGEST).collect();
    if out.len() < line.len() {
        out.push_str("...");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_tools_write_them() {
        for (line, expected) in [
            (
                "Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.  Reboot the system to recover this GPU",
                Some(Trouble::Gpu),
            ),
            (
                "2026/01/02 03:04:05.678, 0, [GPU is lost], [GPU is lost]",
                Some(Trouble::Gpu),
            ),
            ("|  0%   45C    P8    ERR! / 350W |", Some(Trouble::Gpu)),
            (
                "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
                Some(Trouble::Gpu),
            ),
            ("0, [Unknown Error], 12", Some(Trouble::Gpu)),
            (
                "RuntimeError: CUDA error: an illegal memory access was encountered",
                Some(Trouble::Cuda),
            ),
            (
                "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
                Some(Trouble::OutOfMemory),
            ),
            (
                "{\"event\": \"error\", \"text\": \"CUDA Out Of Memory\"}",
                Some(Trouble::OutOfMemory),
            ),
            ("{\"step\": 1, \"used_bytes\": 5}", None),
            ("{\"taxid: 3\": 1}", None),
            ("0, 12 MiB, 24000 MiB, 3 %", None),
            ("", None),
            ("!", None),
        ] {
            assert_eq!(trouble(line.as_bytes()), expected, "{line}");
        }
        assert_eq!(excerpt(b"a\tb\x1bc"), "a b c");
        assert_eq!(excerpt(&[b'x'; 500]).len(), 163);
    }
}
