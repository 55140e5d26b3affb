//! Any bytes as what processes say to each other.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    holdall_processes::hostile::message(bytes);
});
