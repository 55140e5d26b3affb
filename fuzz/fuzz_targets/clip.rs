//! Any bytes as a clip: GIF, WebP, npy and AVI.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = holdall_data::hostile::clip(bytes);
});
