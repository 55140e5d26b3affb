//! Any bytes as a tar of samples.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = holdall_data::hostile::tar(bytes);
});
