use super::*;
use crate::features::npy_header::tests::{dictionary, npy};
use half::{bf16, f16};
use tempfile::TempDir;

fn le(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// A safetensors file with this header and data.
fn tensors(header: &str, data: &[u8]) -> Vec<u8> {
    let length = (header.len() as u64).to_le_bytes();
    [&length, header.as_bytes(), data].concat()
}

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[track_caller]
    fn refuses(&self, name: &str, bytes: &[u8], parts: &[&str]) {
        let path = self.write(name, bytes);
        refused(&path, parts);
    }
}

/// Asserts an error that names the file, contains these texts and ends with a hint.
#[track_caller]
fn refused(named: &Path, parts: &[&str]) {
    let error = FeatureFile::open(named).unwrap_err().to_string();
    let (path, _) = parted(named, ".safetensors");
    assert!(error.starts_with(&*path.to_string_lossy()), "{error}");
    assert!(error.contains("\nhint: "), "{error}");
    for part in parts {
        assert!(error.contains(part), "lacks `{part}`: {error}");
    }
}

fn values(features: &Features<'_>) -> Vec<f32> {
    let mut values = vec![0.0; features.num_rows() * features.dimension()];
    features.read(0, &mut values);
    values
}

#[test]
fn shards_of_every_kind_are_joined_in_the_order_given() {
    let files = Files::new();
    let halves: Vec<u8> = [3.0f32, 4.0]
        .iter()
        .flat_map(|&value| f16::from_f32(value).to_le_bytes())
        .collect();
    let brains: Vec<u8> = [5.0f32, 6.0]
        .iter()
        .flat_map(|&value| bf16::from_f32(value).to_le_bytes())
        .collect();
    let header = "{\"__metadata__\":{\"by\":\"test\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\
                  \"b\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[8,12]}}";
    let paths = [
        files.write(
            "0.npy",
            &npy(
                1,
                &dictionary("'<f4'", "(2, 2)"),
                &le(&[1.0, 2.0, -1.0, -2.0]),
            ),
        ),
        files.write("1.npy", &npy(2, &dictionary("'<f2'", "(1, 2)"), &halves)),
        files.write("2.npy", &npy(3, &dictionary("'<V2'", "(1, 2)"), &brains)),
        files.write(
            "3.npy",
            &npy(1, &dictionary("'bfloat16'", "(1, 2)"), &brains),
        ),
        // The only tensor with rows and columns.
        files.write(
            "4.safetensors",
            &tensors(header, &[le(&[0.0, 0.0]), brains.clone()].concat()),
        ),
    ];
    let all = FeatureFiles::open(&paths).unwrap();
    let expected = [1.0, 2.0, -1.0, -2.0, 3.0, 4.0, 5.0, 6.0, 5.0, 6.0, 5.0, 6.0];
    assert_eq!(values(&all.features()), expected);
    assert_eq!(
        (all.num_rows(), all.dimension(), all.num_bytes()),
        (6, 2, 16 + 4 * 4)
    );
    assert_eq!(all.elements(), [Element::F32, Element::F16, Element::Bf16]);
    assert_eq!(all.place(1), (paths[0].as_path(), 1));
    assert_eq!(all.place(2), (paths[1].as_path(), 0));
    assert_eq!(all.place(5), (paths[4].as_path(), 0));
    all.give_back();
    let chosen = all.chosen(&[0, 1, 2, 5]);
    assert_eq!(values(&chosen), [1.0, 2.0, -1.0, -2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(all.chosen(&[1, 4]).num_rows(), 2);
    let named = format!("{}:b", paths[4].display());
    assert_eq!(FeatureFiles::open(&[named]).unwrap().num_rows(), 1);
}

#[test]
fn shards_of_other_rows_are_named() {
    let files = Files::new();
    let a = files.write(
        "a.npy",
        &npy(1, &dictionary("'<f4'", "(1, 2)"), &le(&[1.0; 2])),
    );
    let b = files.write(
        "b.npy",
        &npy(1, &dictionary("'<f4'", "(1, 3)"), &le(&[1.0; 3])),
    );
    let error = FeatureFiles::open(&[&a, &b]).unwrap_err().to_string();
    assert!(
        error.starts_with(&*b.to_string_lossy()) && error.contains("rows of 2 values as in"),
        "{error}"
    );
}

#[test]
fn what_is_wrong_with_an_array_is_said() {
    let files = Files::new();
    let row = le(&[1.0, 2.0]);
    let of = |format: &str, shape: &str, data: &[u8]| npy(1, &dictionary(format, shape), data);
    files.refuses("empty.npy", b"", &["an empty file"]);
    files.refuses("text.npy", b"1.0,2.0\n", &["begins with", "`1.0,2.0\\n`"]);
    files.refuses(
        "cut.npy",
        &of("'<f4'", "(3, 2)", &row),
        &["bytes", "cut short"],
    );
    let expected = format!(
        "expected {} bytes, found {}",
        10 + dictionary("'<f4'", "(3, 2)").len() + 24,
        10 + dictionary("'<f4'", "(3, 2)").len() + 8
    );
    files.refuses("cut.npy", &of("'<f4'", "(3, 2)", &row), &[&expected]);
    files.refuses(
        "long.npy",
        &of("'<f4'", "(1, 1)", &row),
        &["written behind"],
    );
    files.refuses(
        "objects.npy",
        &of("'|O'", "(1, 2)", &row),
        &["Python objects", "without running"],
    );
    files.refuses(
        "record.npy",
        &of("[('a', '|O')]", "(1,)", &row),
        &["`a record`"],
    );
    files.refuses(
        "f8.npy",
        &of("'<f8'", "(1, 1)", &row),
        &["`<f8`", "astype(np.float32)"],
    );
    files.refuses(
        "big.npy",
        &of("'>f4'", "(1, 2)", &row),
        &["`>f4`", "the other way round"],
    );
    files.refuses(
        "void.npy",
        &of("'|V2'", "(1, 4)", &row),
        &["`|V2`", "ml_dtypes"],
    );
    files.refuses("i8.npy", &of("'<i8'", "(1, 1)", &row), &["`<i8`"]);
    files.refuses(
        "flat.npy",
        &of("'<f4'", "(2,)", &row),
        &["rows x values", "(2,)"],
    );
    files.refuses("deep.npy", &of("'<f4'", "(1, 1, 2)", &row), &["(1, 1, 2)"]);
    files.refuses(
        "none.npy",
        &of("'<f4'", "(0, 2)", b""),
        &["at least one row", "(0, 2)"],
    );
    files.refuses(
        "thin.npy",
        &of("'<f4'", "(2, 0)", b""),
        &["at least one value in a row"],
    );
    let huge = format!("({}, {})", u64::MAX, u64::MAX);
    files.refuses("huge.npy", &of("'<f4'", &huge, &row), &["cut short"]);
    let columns = dictionary("'<f4'", "(2, 2)").replace("False", "True");
    files.refuses(
        "columns.npy",
        &npy(1, &columns, &le(&[0.0; 4])),
        &["ascontiguousarray"],
    );
    // A single row is the same in either order.
    let columns = dictionary("'<f4'", "(1, 2)").replace("False", "True");
    FeatureFile::open(&files.write("row.npy", &npy(1, &columns, &row))).unwrap();
}

#[test]
fn what_is_wrong_with_tensors_is_said() {
    let files = Files::new();
    let row = le(&[1.0, 2.0]);
    let of = |dtype: &str, shape: &str, offsets: &str| {
        let header = format!(
            "{{\"a\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{offsets}}}}}"
        );
        tensors(&header, &row)
    };
    FeatureFile::open(&files.write("right.safetensors", &of("F32", "[1,2]", "[0,8]"))).unwrap();
    let two = "{\"b\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]},\
               \"a\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]}}";
    let path = files.write("two.safetensors", &tensors(two, &row));
    refused(
        &path,
        &["one table of numbers", "found b, a", "two.safetensors:b"],
    );
    let named = PathBuf::from(format!("{}:c", path.display()));
    refused(&named, &["a tensor `c`", "found b, a"]);
    files.refuses(
        "cut.safetensors",
        &of("F32", "[2,2]", "[0,16]"),
        &["cut short"],
    );
    files.refuses(
        "long.safetensors",
        &of("F32", "[1,1]", "[0,4]"),
        &["written behind"],
    );
    files.refuses(
        "place.safetensors",
        &of("F32", "[1,1]", "[0,8]"),
        &["tensor `a`", "4 bytes", "0 to 8"],
    );
    files.refuses(
        "back.safetensors",
        &of("F32", "[1,2]", "[16,8]"),
        &["16 to 8"],
    );
    files.refuses(
        "f64.safetensors",
        &of("F64", "[1,1]", "[0,8]"),
        &["F64 in tensor `a`"],
    );
    files.refuses(
        "flat.safetensors",
        &of("F32", "[2]", "[0,8]"),
        &["one table of numbers", "found a"],
    );
    files.refuses(
        "type.safetensors",
        &of("F33", "[2]", "[0,8]"),
        &["safetensors header", "F33"],
    );
    files.refuses("short.safetensors", b"abc", &["expected 8 bytes, found 3"]);
    files.refuses(
        "header.safetensors",
        &[0xff; 9],
        &["expected 18446744073709551623 bytes"],
    );
    files.refuses(
        "json.safetensors",
        &tensors("[1]", b""),
        &["safetensors header"],
    );
    files.refuses("nothing.safetensors", &tensors("{}", b""), &["found none"]);
    let none = "{\"a\":{\"dtype\":\"F32\",\"shape\":[0,2],\"data_offsets\":[0,0]}}";
    files.refuses(
        "none.safetensors",
        &tensors(none, b""),
        &["at least one row"],
    );
}

#[test]
fn names_that_say_nothing_are_answered() {
    let files = Files::new();
    files.refuses("features.pt", b"x", &["a pickle runs code", "save_file"]);
    files.refuses("features.npz", b"x", &["np.load"]);
    files.refuses("features", b"x", &["np.save"]);
    refused(&files.0.path().join("absent.npy"), &["could not open it"]);
    assert_eq!(
        parted(Path::new("C:/a.npy"), ".safetensors"),
        ("C:/a.npy".into(), None)
    );
}
