/// Initial value of an FNV-1a hash.
pub const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// Extends an FNV-1a hash by some bytes.
pub fn fnv1a(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
