//! Any bytes as a picture.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = holdall_data::hostile::picture(bytes);
});
