//! Any bytes as a log of memory.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = holdall_telemetry::hostile::log(bytes);
});
