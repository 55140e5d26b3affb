//! Error messages of tools in a log of any format: `GPU is lost`, `ERR!`, an Xid, `CUDA out of memory`. Such lines are rarely
//! samples, and would otherwise be skipped as unreadable.

use serde::Serialize;

use super::lines::Line;

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
    pub kind: Trouble,
    /// Line number of the first message, from 1.
    pub first_line: u64,
    pub text: String,
    pub count: u64,
    /// Step of the last sample before the first message.
    pub step: Option<u64>,
}

/// Phrases in lower case. Earlier phrases take precedence, so that an out-of-memory error is not reported as a CUDA error.
const PHRASES: [(&str, Trouble); 20] = [
    ("out of memory", Trouble::OutOfMemory),
    ("cuda_error_out_of_memory", Trouble::OutOfMemory),
    ("outofmemoryerror:", Trouble::OutOfMemory),
    ("gpu is lost", Trouble::Gpu),
    ("gpu requires reset", Trouble::Gpu),
    ("unable to determine the device handle", Trouble::Gpu),
    ("fallen off the bus", Trouble::Gpu),
    ("no devices were found", Trouble::Gpu),
    ("failed to initialize nvml", Trouble::Gpu),
    ("couldn't communicate with the nvidia driver", Trouble::Gpu),
    ("uncorrectable ecc error", Trouble::Gpu),
    ("err!", Trouble::Gpu),
    ("unknown error]", Trouble::Gpu),
    ("xid (", Trouble::Gpu),
    ("xid:", Trouble::Gpu),
    ("xid error", Trouble::Gpu),
    ("cuda error", Trouble::Cuda),
    ("cuda_error_", Trouble::Cuda),
    ("illegal memory access", Trouble::Cuda),
    ("device-side assert", Trouble::Cuda),
];

/// Kind of the error in a line, if any.
pub(super) fn trouble(line: &[u8]) -> Option<Trouble> {
    let line = String::from_utf8_lossy(line).to_ascii_lowercase();
    // Whole words only: `taxid: 3` is not an Xid.
    let is_word = |at: usize| !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
    let has = |phrase: &str| line.match_indices(phrase).any(|(at, _)| is_word(at));
    let found = PHRASES.iter().find(|(phrase, _)| has(phrase));
    found.map(|(_, trouble)| *trouble)
}

/// Adds an error message to the entry of its kind; `step` is the last step before it.
pub(super) fn add(
    troubles: &mut Vec<TroubleLines>,
    what: Trouble,
    line: &Line<'_>,
    step: Option<u64>,
) {
    match troubles.iter_mut().find(|known| known.kind == what) {
        Some(known) => known.count += 1,
        None => troubles.push(TroubleLines {
            kind: what,
            first_line: line.number,
            text: excerpt(line.bytes),
            count: 1,
            step,
        }),
    }
}

/// The beginning of a line, without control characters.
fn excerpt(line: &[u8]) -> String {
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
