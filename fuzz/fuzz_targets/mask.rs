//! Any bytes as a mask.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = holdall_data::hostile::mask(bytes);
});
