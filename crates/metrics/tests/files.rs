//! Files as NumPy and safetensors write them, against ranks that NumPy found. `fixtures/make_features.py` made both.

#![allow(clippy::unwrap_used)]

use std::path::PathBuf;

use holdall_metrics::features::FeatureFiles;
use holdall_metrics::retrieval::pair_file::{self, Counts};
use holdall_metrics::retrieval::{Engine, Found, Job, Options, Pairs, Ranked, rank};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/features");
    PathBuf::from(folder).join(name)
}

fn golden() -> Value {
    serde_json::from_str(&std::fs::read_to_string(fixture("golden.json")).unwrap()).unwrap()
}

fn found(queries: &[&str], gallery: &[&str], pairs: &str, options: &Options) -> Found {
    let open = |names: &[&str]| {
        let paths: Vec<PathBuf> = names.iter().map(|name| fixture(name)).collect();
        FeatureFiles::open(&paths).unwrap()
    };
    let [queries, gallery] = [queries, gallery].map(open);
    let counts = Counts {
        queries: queries.num_rows(),
        gallery: gallery.num_rows(),
    };
    let pairs = pair_file::read(&fixture(pairs), counts).unwrap();
    let job = Job {
        queries: &queries.features(),
        gallery: &gallery.features(),
        pairs: &Pairs::new(counts.queries, counts.gallery, pairs).unwrap(),
    };
    rank(Engine::Cpu, &job, options, &mut |_| true).unwrap()
}

fn places(ranked: &Ranked) -> Value {
    let places = ranked
        .entries
        .iter()
        .map(|entry| [entry.above, entry.level]);
    places
        .collect::<Vec<_>>()
        .into_iter()
        .map(|place| place.to_vec())
        .collect()
}

#[test]
fn files_of_every_kind_give_the_ranks_that_numpy_found() {
    let golden = golden();
    for (queries, gallery, pairs) in [
        (
            ["queries_f32.npy"].as_slice(),
            ["gallery_0.npy", "gallery_1.npy"].as_slice(),
            "pairs.npy",
        ),
        (&["queries_f16.npy"], &["gallery_version2.npy"], "pairs.csv"),
        (
            &["queries_bf16.safetensors"],
            &["gallery_f16.safetensors"],
            "pairs_columns.npy",
        ),
        (
            &["queries_bf16.safetensors:queries"],
            &["gallery_f16.safetensors:gallery"],
            "pairs.npy",
        ),
    ] {
        let found = found(queries, gallery, pairs, &Options::default());
        assert_eq!(
            places(&found.to_gallery),
            golden["to_gallery"],
            "{queries:?}"
        );
        assert_eq!(places(&found.to_query), golden["to_query"], "{queries:?}");
    }
}

#[test]
fn neighbours_are_those_that_numpy_found() {
    let options = Options {
        neighbours: 3,
        ..Options::default()
    };
    let found = found(
        &["queries_f32.npy"],
        &["gallery_f16.safetensors"],
        "pairs.csv",
        &options,
    );
    let neighbours = found.neighbours.unwrap();
    assert_eq!(neighbours.count, 3);
    let items: Value = neighbours
        .items
        .chunks(3)
        .map(|items| items.to_vec())
        .collect();
    assert_eq!(items, golden()["neighbours"]);
}

#[test]
fn what_is_refused_is_refused_as_numpy_wrote_it() {
    for (name, part) in [
        ("refused_objects.npy", "Python objects"),
        ("refused_f64.npy", "`<f8`"),
        ("refused_big_endian.npy", "the other way round"),
        ("refused_columns.npy", "ascontiguousarray"),
        ("refused_record.npy", "`a record`"),
        ("refused_flat.npy", "(5,)"),
    ] {
        let error = FeatureFiles::open(&[fixture(name)])
            .unwrap_err()
            .to_string();
        assert!(error.contains(name) && error.contains(part), "{error}");
    }
}
