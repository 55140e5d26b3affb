//! 64-bit hashes of the samples that a run sees; they tell a run with other data from a resumed one.

use holdall_files::{FNV_START, fnv1a};

use crate::planning::prepare::Prepared;

/// Adds bytes and the byte that ends them.
fn with_part(hash: u64, part: &[u8]) -> u64 {
    fnv1a(fnv1a(hash, part), &[0xff])
}

/// Hash of a step's samples.
pub(crate) fn digest(samples: impl IntoIterator<Item = u32>) -> u64 {
    let parts = samples.into_iter().map(|sample| sample.to_le_bytes());
    parts.fold(FNV_START, |hash, part| with_part(hash, &part))
}

/// Hash of all settings and samples that decide which data a run sees.
pub(crate) fn data_digest(prepared: &Prepared) -> u64 {
    let mut hash = FNV_START;
    let mut add = |bytes: &[u8]| hash = with_part(hash, bytes);
    let task = &prepared.setup.step.task;
    for (_, samples) in prepared.subsets() {
        task.add_to_digest(samples, &mut add);
        add(b"end of part");
    }
    if let Some(processor) = prepared.setup.processor.digest_text() {
        add(processor.as_bytes());
    }
    hash
}
