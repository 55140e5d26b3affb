//! Any bytes as features, `.npy` and safetensors, and as pairs.

#![no_main]

use holdall_metrics::hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = hostile::npy(bytes);
    let _ = hostile::safetensors(bytes);
    let _ = hostile::pairs(bytes);
});
