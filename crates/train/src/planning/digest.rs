//! Which samples a run sees, in 64 bits: what tells a run on other data from one that goes on.

use holdall_files::{FNV_START, fnv1a};

use crate::planning::prepare::Prepared;

/// Adds a part and the byte that ends it.
fn with_part(hash: u64, part: &[u8]) -> u64 {
    fnv1a(fnv1a(hash, part), &[0xff])
}

/// Of the samples of a step.
pub(crate) fn digest(samples: impl IntoIterator<Item = u32>) -> u64 {
    let parts = samples.into_iter().map(|sample| sample.to_le_bytes());
    parts.fold(FNV_START, |hash, part| with_part(hash, &part))
}

/// Of all that decides which samples a run sees.
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
