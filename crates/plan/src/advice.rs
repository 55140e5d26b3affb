//! Suggestions for a run that does not fit or could be faster: options to type. They are shown, never applied.

use crate::candidate::{Build, Candidate};
use crate::change::{Change, ChangeKind};
use crate::request::Request;
use crate::search::search;
use crate::target::Target;

/// A variant of the run with other numerics. It is shown and never applied, because only the user may change the numerics.
pub struct Variant<'a> {
    /// Option to type.
    pub change: &'a str,
    /// Difference of the numerics, for the end of a message.
    pub note: &'a str,
    pub build: Build<'a>,
}

/// Variants that fit a budget which the run exceeds, with their memory and time.
pub fn variants_that_fit(
    request: &Request,
    variants: &[Variant<'_>],
    target: &dyn Target,
) -> Vec<Change> {
    let of = |variant: &Variant<'_>| {
        let candidate = search(request, variant.build, target).ok()?;
        Some(Change {
            change: format!("{} ({})", variant.change, variant.note),
            kind: ChangeKind::Numerics,
            process_bytes: candidate.process_bytes,
            step_ms: candidate.step_ms,
        })
    };
    variants.iter().filter_map(of).collect()
}

/// A batch size that would be at least 5% faster in the same budget.
pub(crate) fn suggestion(
    request: &Request,
    effective_batch: usize,
    chosen: &Candidate,
    build: Build<'_>,
    target: &dyn Target,
) -> Option<Candidate> {
    if request.batch_size.is_none() && request.gradient_accumulation.is_none() {
        return None;
    }
    let open = Request {
        effective_batch: Some(effective_batch),
        batch_size: None,
        gradient_accumulation: None,
        kept: None,
        ..request.clone()
    };
    search(&open, build, target)
        .ok()
        .filter(|better| better.step_ms < 0.95 * chosen.step_ms)
}

/// `--memory` for this many bytes, rounded up: in MiB, from 10 GiB on in GiB.
fn more_memory(bytes: u64) -> String {
    match bytes >> 30 {
        0..10 => format!("--memory {}MiB", bytes.div_ceil(1 << 20)),
        _ => format!("--memory {}GiB", bytes.div_ceil(1 << 30)),
    }
}

/// Changes that make a run fit: more memory, or other values for some of the user's settings. Each change names every setting
/// that it touches. Returns the fastest two and the memory, fastest first.
pub(crate) fn changes(
    request: &Request,
    effective_batch: usize,
    smallest: &Candidate,
    build: Build<'_>,
    target: &dyn Target,
) -> Vec<Change> {
    let open_split = Request {
        effective_batch: Some(effective_batch),
        batch_size: None,
        gradient_accumulation: None,
        ..request.clone()
    };
    let search = |relaxed: &Request| search(relaxed, build, target).ok();
    let mut found = with_the_same_gradient(request, &open_split, &search);
    found.extend(with_a_smaller_batch(
        request,
        &open_split,
        effective_batch,
        &search,
    ));
    found.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    found.truncate(2);
    found.push(Change {
        change: more_memory(smallest.process_bytes),
        kind: ChangeKind::Memory,
        process_bytes: smallest.process_bytes,
        step_ms: smallest.step_ms,
    });
    found.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
    found
}

fn is_split_fixed(request: &Request) -> bool {
    request.batch_size.is_some() || request.gradient_accumulation.is_some()
}

/// Changes of the split, of what is recomputed, or of both; of those with the same memory, the first.
fn with_the_same_gradient(
    request: &Request,
    open_split: &Request,
    search: &dyn Fn(&Request) -> Option<Candidate>,
) -> Vec<Change> {
    let split_fixed = is_split_fixed(request);
    let with_any_recompute = |request: &Request| Request {
        recompute: None,
        ..request.clone()
    };
    let mut relaxed = Vec::new();
    if split_fixed {
        relaxed.push(open_split.clone());
    }
    if request.recompute.is_some() {
        relaxed.push(with_any_recompute(request));
        if split_fixed {
            relaxed.push(with_any_recompute(open_split));
        }
    }
    let mut found: Vec<Change> = Vec::new();
    for relaxed in relaxed {
        let Some(candidate) = search(&relaxed) else {
            continue;
        };
        let (mut words, mut kind) = (Vec::new(), ChangeKind::Recompute);
        if relaxed.recompute != request.recompute {
            words.push("--recompute auto".to_owned());
        }
        if split_fixed && !is_split_fixed(&relaxed) {
            words.push(split_words(&candidate));
            kind = ChangeKind::Split;
        }
        let same = |other: &Change| other.process_bytes == candidate.process_bytes;
        if !found.iter().any(same) {
            found.push(Change {
                change: format!("{} (the same gradient)", words.join(" ")),
                kind,
                process_bytes: candidate.process_bytes,
                step_ms: candidate.step_ms,
            });
        }
    }
    found
}

/// The largest effective batch that fits, of a half, a quarter and so on.
fn with_a_smaller_batch(
    request: &Request,
    open_split: &Request,
    effective_batch: usize,
    search: &dyn Fn(&Request) -> Option<Candidate>,
) -> Option<Change> {
    let fewer = |effective: usize| {
        search(&Request {
            effective_batch: Some(effective),
            ..open_split.clone()
        })
    };
    // If a single sample does not fit, no effective batch does.
    if effective_batch <= 1 || fewer(1).is_none() {
        return None;
    }
    let halves = std::iter::successors(Some(effective_batch / 2), |&half| Some(half / 2));
    let (half, candidate) = halves
        .take_while(|&half| half >= 1)
        .find_map(|half| fewer(half).map(|candidate| (half, candidate)))?;
    let split = if is_split_fixed(request) {
        format!(" {}", split_words(&candidate))
    } else {
        String::new()
    };
    Some(Change {
        change: format!(
            "--effective-batch {half}{split} (another gradient{})",
            request.smaller_batch_note
        ),
        kind: ChangeKind::EffectiveBatch,
        process_bytes: candidate.process_bytes,
        step_ms: candidate.step_ms,
    })
}

fn split_words(candidate: &Candidate) -> String {
    format!(
        "--batch-size {} --gradient-accumulation {}",
        candidate.choice.batch_size, candidate.choice.gradient_accumulation
    )
}
