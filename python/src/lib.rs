//! What the Python package needs of Holdall within its own process: ranking features where they lie, without a copy.
//!
//! Everything else runs the `holdall` program.

use std::slice;

use holdall_device::{Device, DeviceChoice};
use holdall_metrics::features::{Element, Features, Segment};
use holdall_metrics::retrieval::{
    Engine, Job, Options, Pairs, Ranked, RetrievalError, Rule, Ties, rank,
};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Map, Value, json};

/// An array in memory: address, rows, values of a row, number format. `holdall/retrieval.py` makes it of numpy and torch arrays.
type Array = (usize, usize, usize, String);

/// A view of an array.
///
/// # Safety
/// The memory holds `rows * width` values of this format, and neither moves nor changes while the features are used.
unsafe fn features<'a>((address, rows, width, format): Array) -> PyResult<Features<'a>> {
    let element = match format.as_str() {
        "float32" => Element::F32,
        "float16" => Element::F16,
        "bfloat16" => Element::Bf16,
        other => {
            let words = format!("expected float32, float16 or bfloat16, found {other}");
            return Err(PyValueError::new_err(words));
        }
    };
    let num_bytes = rows
        .checked_mul(width)
        .and_then(|values| values.checked_mul(element.num_bytes()))
        .filter(|&bytes| bytes > 0 && isize::try_from(bytes).is_ok());
    let (Some(num_bytes), false) = (num_bytes, address == 0) else {
        let words = format!("expected rows of values, found {rows} x {width}");
        return Err(PyValueError::new_err(words));
    };
    let pointer = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the caller promises that so many bytes are there and stay as they are.
    let bytes = unsafe { slice::from_raw_parts(pointer, num_bytes) };
    Ok(Features::new(width, [Segment { bytes, element }]))
}

fn direction(ranked: &Ranked, at: &[u64], ties: Ties) -> Value {
    let ranks = ranked.ranks(ties);
    let within = |&k: &u64| (k.to_string(), ranked.within(k, ties).into());
    let at: Map<String, Value> = at.iter().map(within).collect();
    json!({
        "r1": ranks.r1, "r5": ranks.r5, "r10": ranks.r10,
        "median_rank": ranks.median_rank, "mean_rank": ranks.mean_rank, "mrr": ranks.mrr,
        "ndcg5": ranked.ndcg(5, ties), "at": at, "ranked": ranked.num_items(), "ties": ranked.num_tied(),
    })
}

fn failed(error: &RetrievalError) -> PyErr {
    match error {
        RetrievalError::DoesNotFit { .. } => PyMemoryError::new_err(error.to_string()),
        RetrievalError::Device(_) => PyRuntimeError::new_err(error.to_string()),
        _ => PyValueError::new_err(error.to_string()),
    }
}

/// Ranks, as JSON, and the nearest gallery items of each query, as 32-bit numbers, with their scores, as floats.
///
/// The arrays must stay as they are until it returns; `holdall/retrieval.py` holds on to them.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "called with names, by one caller"
)]
fn rank_arrays<'py>(
    py: Python<'py>,
    queries: Array,
    gallery: Array,
    pairs: Option<Vec<(u32, u32)>>,
    ties: String,
    positives: String,
    at: Vec<u64>,
    top: usize,
    memory_bytes: Option<u64>,
    num_threads: Option<usize>,
    device: String,
) -> PyResult<(String, Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>)> {
    // SAFETY: the caller holds on to the arrays, and says where they are and how large.
    let (queries, gallery) = unsafe { (features(queries)?, features(gallery)?) };
    let (num_queries, num_gallery) = (queries.num_rows(), gallery.num_rows());
    let pairs = match pairs {
        Some(pairs) => Pairs::new(num_queries, num_gallery, pairs),
        None if num_queries == num_gallery => {
            Pairs::one_each(&(0..num_gallery as u32).collect::<Vec<u32>>(), num_gallery)
        }
        None => {
            let words = format!(
                "{num_queries} queries and {num_gallery} gallery items: expected pairs where their numbers differ"
            );
            return Err(PyValueError::new_err(words));
        }
    };
    let pairs = pairs.map_err(|error| failed(&error))?;
    let ties = match ties.as_str() {
        "optimistic" => Ties::Optimistic,
        "pessimistic" => Ties::Pessimistic,
        _ => Ties::Mean,
    };
    let options = Options {
        rule: match positives.as_str() {
            "recall" => Rule::Recall,
            _ => Rule::Best,
        },
        memory_bytes,
        neighbours: top.min(num_gallery),
    };
    let choice = match device.as_str() {
        "cuda" => DeviceChoice::Cuda(0),
        _ => DeviceChoice::Cpu,
    };
    // Other Python threads go on meanwhile.
    let found = py.detach(|| {
        let device = Device::open(choice, num_threads)
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        let engine = device.gpu().map_or(Engine::Cpu, Engine::Gpu);
        let job = Job {
            queries: &queries,
            gallery: &gallery,
            pairs: &pairs,
        };
        let ranked = device
            .cpu()
            .scope(|| rank(engine, &job, &options, &mut |_| true));
        ranked.map_err(|error| failed(&error))
    })?;
    let ranks = json!({
        "queries": num_queries,
        "gallery": num_gallery,
        "dimension": queries.dimension(),
        "pairs": pairs.len(),
        "query_to_gallery": direction(&found.to_gallery, &at, ties),
        "gallery_to_query": direction(&found.to_query, &at, ties),
        "tie_policy": ties,
    });
    let neighbours = found.neighbours.map(|neighbours| {
        let items: Vec<u8> = neighbours
            .items
            .iter()
            .flat_map(|item| item.to_ne_bytes())
            .collect();
        let scores: Vec<u8> = neighbours
            .scores
            .iter()
            .flat_map(|score| score.to_ne_bytes())
            .collect();
        (PyBytes::new(py, &items), PyBytes::new(py, &scores))
    });
    Ok((ranks.to_string(), neighbours))
}

/// The package's part in Rust.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(rank_arrays, module)?)
}
