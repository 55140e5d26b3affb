//! Which samples a run sees, in 64 bits: what tells a run on other data from one that goes on.

use crate::planned_run::PlannedRun;

/// FNV-1a.
struct Digest(u64);

impl Digest {
    fn new() -> Digest {
        Digest(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().chain(&[0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Of the samples of a step.
pub(super) fn digest(samples: &[u32]) -> u64 {
    let mut digest = Digest::new();
    for sample in samples {
        digest.add(&sample.to_le_bytes());
    }
    digest.0
}

/// Of all that decides which samples a run sees.
pub(super) fn data_digest(planned: &PlannedRun) -> u64 {
    let mut digest = Digest::new();
    let mut add = |bytes: &[u8]| digest.add(bytes);
    let task = &planned.prepared.setup.step.task;
    for (_, samples) in planned.prepared.subsets() {
        task.add_to_digest(samples, &mut add);
        add(b"end of part");
    }
    if let Some(processor) = planned.prepared.setup.processor.digest_text() {
        add(processor.as_bytes());
    }
    digest.0
}
