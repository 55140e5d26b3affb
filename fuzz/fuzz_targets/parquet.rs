//! Any bytes as a Parquet file.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = holdall_data::hostile::parquet(bytes);
});
