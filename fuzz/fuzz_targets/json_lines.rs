//! Any bytes as JSON lines.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = holdall_data::hostile::json_lines(bytes);
});
