//! Error messages of tools in a log of any format: `GPU is lost`, `ERR!`, an Xid, `CUDA out of memory`. Such lines are rarely
//! samples, and would otherwise be skipped as unreadable.

/// Kind of an error message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The first message, without control characters.
    pub text: String,
    pub count: u64,
    /// Step of the last sample before the first message.
    pub step: Option<u64>,
}

/// Phrases in lower case. Earlier kinds take precedence, so that an out-of-memory error is not reported as a CUDA error.
const PHRASES: [(Trouble, &str); 3] = [
    (
        Trouble::OutOfMemory,
        "out of memory|cuda_error_out_of_memory|outofmemoryerror:",
    ),
    (
        Trouble::Gpu,
        "gpu is lost|gpu requires reset|unable to determine the device handle|fallen off the bus|no devices were found|\
         failed to initialize nvml|couldn't communicate with the nvidia driver|uncorrectable ecc error|err!|unknown error]|\
         xid (|xid:|xid error",
    ),
    (
        Trouble::Cuda,
        "cuda error|cuda_error_|illegal memory access|device-side assert",
    ),
];

/// Kind of the error in a line, if any.
pub(super) fn trouble(line: &[u8]) -> Option<Trouble> {
    let line = String::from_utf8_lossy(line).to_ascii_lowercase();
    // Whole words only: `taxid: 3` is not an Xid.
    let is_word = |at: usize| !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
    let has = |phrase: &str| line.match_indices(phrase).any(|(at, _)| is_word(at));
    let found = PHRASES
        .iter()
        .find(|(_, phrases)| phrases.split('|').any(has));
    found.map(|(kind, _)| *kind)
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
