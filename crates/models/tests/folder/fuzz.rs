//! No bytes on disk make the readers panic: whatever opens can be read from end to end.

use std::fs;
use std::path::Path;

use holdall_models::ModelError;
use holdall_models::config::ClipConfig;
use holdall_models::folder::ModelFolder;
use proptest::prelude::*;

use crate::{tiny, tiny_folder};

/// Changes to a file: bytes overwritten, bytes inserted, and a cut. Positions are fractions, so that
/// `focus` can point them at its interesting first part.
#[derive(Debug, Clone)]
struct Damage {
    overwrite: Vec<(f64, u8)>,
    insert: Option<(f64, Vec<u8>)>,
    keep: Option<f64>,
}

fn damage() -> impl Strategy<Value = Damage> {
    // Bytes that mean something in JSON are worth more tries than others.
    let byte = prop_oneof![any::<u8>(), prop::sample::select(&b"0129{}[]\",:-.e "[..])];
    let overwrite = prop::collection::vec((0.0..1.0, byte.clone()), 0..4);
    let insert = prop::option::of((0.0..1.0, prop::collection::vec(byte, 1..20)));
    let keep = prop::option::weighted(0.2, 0.0..1.0);
    (overwrite, insert, keep).prop_map(|(overwrite, insert, keep)| Damage {
        overwrite,
        insert,
        keep,
    })
}

fn apply(damage: &Damage, bytes: &mut Vec<u8>, focus: usize) {
    let position = |fraction: f64| (fraction * focus as f64) as usize;
    for &(fraction, byte) in &damage.overwrite {
        bytes[position(fraction)] = byte;
    }
    if let Some((fraction, inserted)) = &damage.insert {
        let position = position(*fraction);
        bytes.splice(position..position, inserted.iter().copied());
    }
    if let Some(fraction) = damage.keep {
        bytes.truncate((fraction * bytes.len() as f64) as usize);
    }
}

/// Whether everything could be read.
fn read_all(folder: &Path) -> bool {
    let Ok(opened) = ModelFolder::open(folder) else {
        return false;
    };
    let _ = opened.check();
    let _ = opened.read_head();
    let mut names = opened.names();
    names.all(|name| {
        let tensor = opened.tensor(name).unwrap();
        let mut values = vec![0.0; tensor.shape.iter().product()];
        match opened.read_f32(name, &mut values) {
            Ok(()) => true,
            Err(ModelError::Damaged { .. } | ModelError::NotFinite { .. }) => false,
            Err(error) => panic!("{error}"),
        }
    })
}

/// Other programs write files without checksums: damage then gets as far as the parser lets it.
fn without_checksums(bytes: &mut [u8]) {
    for key in ["\"holdall.checksums", "\"holdall.header_checksum"] {
        let found = bytes.windows(key.len()).position(|at| at == key.as_bytes());
        bytes[found.unwrap() + 1..][..7].copy_from_slice(b"another");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_weights_never_panic(
        damage in damage(),
        in_header in any::<bool>(),
        mend in any::<bool>(),
        has_checksums in any::<bool>(),
    ) {
        let folder = tiny_folder();
        let path = folder.path().join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        if !has_checksums {
            without_checksums(&mut bytes);
        }
        let whole = bytes.clone();
        let header_end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let (length, focus) = (bytes.len(), if in_header { header_end as usize } else { bytes.len() });
        apply(&damage, &mut bytes, focus);
        if mend && bytes.len() > length {
            // The length field follows what was inserted, so that the damage reaches the parser.
            let grown = header_end - 8 + (bytes.len() - length) as u64;
            bytes[..8].copy_from_slice(&grown.to_le_bytes());
        }
        let is_damaged = bytes != whole;
        fs::write(&path, bytes).unwrap();
        let is_read = read_all(folder.path());
        // Whatever changed in a file that has checksums is found.
        prop_assert!(!has_checksums || is_read != is_damaged);
    }

    #[test]
    fn damaged_config_never_panics(damage in damage()) {
        let mut bytes = tiny().to_json().into_bytes();
        let focus = bytes.len();
        apply(&damage, &mut bytes, focus);
        let text = String::from_utf8_lossy(&bytes);
        if let Ok(config) = ClipConfig::from_json(&text, Path::new("config.json")) {
            // What was accepted writes a file that is accepted, of the same tensors.
            let again = ClipConfig::from_json(&config.to_json(), Path::new("config.json")).unwrap();
            prop_assert_eq!(config.tensors(), again.tensors());
        }
    }

    #[test]
    fn any_numbers_in_a_header_never_panic(
        entries in prop::collection::vec((any::<u64>(), prop::collection::vec(0u64..1 << 62, 0..3), any::<bool>()), 1..5),
    ) {
        // Offsets follow one another, as a careful forger would have them.
        let mut header = serde_json::Map::new();
        let mut start = 0u64;
        for (number, (end, shape, byte)) in entries.iter().enumerate() {
            let end = (*end).max(start);
            let dtype = if *byte { "U8" } else { "F32" };
            let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
            header.insert(number.to_string(), entry);
            start = end;
        }
        let header = serde_json::Value::from(header).to_string();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend([0; 64]);
        let folder = tiny_folder();
        fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        read_all(folder.path());
    }
}
