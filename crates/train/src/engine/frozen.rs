//! Frozen parameters of a run: `train: freeze` resolved against the parameters of the model, in its order.
//!
//! A frozen parameter has no gradient, no moments and no part in the gradient norm. Layers whose parameters are all frozen,
//! from the input on, have no backward pass and keep no activations for one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use holdall_files::thousands;
use holdall_graph::{Graph, StorageId};

use crate::config::{Freeze, FrozenShare, covers};
use crate::engine::optimizer::HEAD_RATE;
use crate::engine::step_graph::{StepConfig, write_parameters};
use crate::engine::task::Task;
use crate::error::TrainError;

/// Names of the parameters that are not trained.
pub type Frozen = Arc<BTreeSet<String>>;

/// Number of scalar parameters of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterCount {
    pub trained: u64,
    pub all: u64,
}

impl ParameterCount {
    /// Counts the parameters of a step.
    pub fn of(graph: &Graph) -> ParameterCount {
        let count = |trained_only: bool| -> u64 {
            let parameters = graph.parameters().iter();
            let counted = parameters.filter(|one| one.trainable || !trained_only);
            counted
                .map(|one| graph.shape(one.value).num_elements() as u64)
                .sum()
        };
        ParameterCount {
            trained: count(true),
            all: count(false),
        }
    }

    pub fn describe(&self) -> String {
        let (trained, all) = (show(self.trained), show(self.all));
        format!("Trains {trained} of {all} parameters")
    }
}

fn show(count: u64) -> String {
    match count {
        0..1_000_000 => thousands(count),
        _ => format!("{:.1} M", count as f64 / 1e6),
    }
}

/// Resolves the frozen parameters of a task.
pub fn resolve(freeze: &Freeze, task: &Arc<dyn Task>) -> Result<Frozen, TrainError> {
    let graph = write_parameters(&StepConfig::new(Arc::clone(task)));
    let frozen = match freeze {
        Freeze::Nothing => BTreeSet::new(),
        Freeze::AllButHeads => all_but_heads(&graph, task)?,
        Freeze::Names(names) => named(names, &graph)?,
    };
    check_shared(&graph, &frozen)?;
    let parameters = graph.parameters().iter();
    if parameters
        .filter(|one| one.trainable)
        .all(|one| frozen.contains(&one.name))
    {
        return Err(TrainError::Config(format!(
            "train.freeze: all {} parameters would be frozen, expected some to train\n\
             hint: `freeze: {{vision_model: all but 2}}` leaves the last two blocks trained; to use a model as it is, \
             `holdall eval` and `holdall predict`",
            show(ParameterCount::of(&graph).all)
        )));
    }
    Ok(Arc::new(frozen))
}

fn all_but_heads(graph: &Graph, task: &Arc<dyn Task>) -> Result<BTreeSet<String>, TrainError> {
    let is_head = |rate: usize| rate == HEAD_RATE;
    if !graph.parameters().iter().any(|one| is_head(one.rate)) {
        let first = graph.parameters().first();
        let first = first.map_or("a", |one| top(&one.name));
        return Err(TrainError::Config(format!(
            "train.freeze: all but heads, expected parameters with the heads' learning rate; {} has none here\n\
             hint: a label head has one, where the data has labels; or name what to freeze: `freeze: [{first}]`",
            task.name()
        )));
    }
    let parameters = graph.parameters().iter();
    let frozen = parameters.filter(|one| !is_head(one.rate));
    Ok(frozen.map(|one| one.name.clone()).collect())
}

fn named(names: &[(String, FrozenShare)], graph: &Graph) -> Result<BTreeSet<String>, TrainError> {
    let all: Vec<&str> = graph
        .parameters()
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    let mut frozen = BTreeSet::new();
    for (name, share) in names {
        let mut covered: Vec<&str> = all.clone();
        covered.retain(|parameter| covers(name, parameter));
        if covered.is_empty() {
            return Err(TrainError::Config(format!(
                "train.freeze: `{name}`, expected the name of a parameter, its beginning up to a dot, or a pattern with `*`; \
                 nothing is called so\nhint: {}",
                near(name, &all)
            )));
        }
        if let FrozenShare::AllBut(blocks) = *share {
            covered.truncate(first_trained(name, &covered, blocks)?);
        }
        frozen.extend(covered.into_iter().map(str::to_owned));
    }
    Ok(frozen)
}

/// Index of the first parameter of the last `blocks` numbered blocks among the parameters of `name`, which are in the order
/// of the model.
fn first_trained(name: &str, covered: &[&str], blocks: usize) -> Result<usize, TrainError> {
    let mut starts: Vec<usize> = Vec::new();
    let mut known: BTreeSet<&str> = BTreeSet::new();
    let skipped = if name.contains('*') { 0 } else { name.len() };
    for (place, parameter) in covered.iter().enumerate() {
        if let Some(block) = block_of(parameter, skipped)
            && known.insert(block)
        {
            starts.push(place);
        }
    }
    let refused = |found: String, hint: String| {
        TrainError::Config(format!(
            "train.freeze: `{name}: all but {blocks}`, expected at most as many blocks as there are; {found}\nhint: {hint}"
        ))
    };
    match starts.len() {
        0 => Err(refused(
            format!("`{name}` has no numbered blocks"),
            format!("`freeze: [{name}]` freezes all of it"),
        )),
        found if found < blocks => Err(refused(
            format!("`{name}` has {found}"),
            format!("`freeze: {{{name}: all but {}}}`", found.div_ceil(2)),
        )),
        found => Ok(starts[found - blocks]),
    }
}

/// A parameter's name up to its first numeric part after `skipped` bytes: `vision_model.encoder.layers.3`.
fn block_of(parameter: &str, skipped: usize) -> Option<&str> {
    let mut end = skipped;
    for part in parameter[skipped..].split('.') {
        end += part.len();
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if is_number {
            return Some(&parameter[..end]);
        }
        end += 1;
    }
    None
}

/// Parameters that share a storage (q, k and v) share a gradient: they must all be frozen, or none.
fn check_shared(graph: &Graph, frozen: &BTreeSet<String>) -> Result<(), TrainError> {
    let mut first: HashMap<StorageId, &str> = HashMap::new();
    for one in graph.parameters() {
        let storage = graph.value(one.value).storage;
        let other = *first.entry(storage).or_insert(&one.name);
        if frozen.contains(other) != frozen.contains(&one.name) {
            let (cold, warm) = if frozen.contains(other) {
                (other, one.name.as_str())
            } else {
                (one.name.as_str(), other)
            };
            return Err(TrainError::Config(format!(
                "train.freeze: {cold} is frozen and {warm} is not, expected both or neither: one product computes them\n\
                 hint: name what both have in common, or both"
            )));
        }
    }
    Ok(())
}

/// The first part of a name.
fn top(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Suggestions for an unknown name: the most similar names and prefixes, or the first parts of all names.
fn near(name: &str, parameters: &[&str]) -> String {
    let mut known: BTreeMap<&str, f64> = BTreeMap::new();
    for parameter in parameters {
        let ends = parameter.match_indices('.').map(|(end, _)| end);
        for end in ends.chain([parameter.len()]) {
            let start = &parameter[..end];
            known.insert(start, strsim::jaro_winkler(name, start));
        }
    }
    let mut nearest: Vec<(&str, f64)> = known.into_iter().collect();
    nearest.retain(|(_, nearness)| *nearness >= NEAR);
    nearest.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let quoted = |names: &[&str]| {
        let names = names.iter().map(|name| format!("`{name}`"));
        names.collect::<Vec<_>>().join(", ")
    };
    if nearest.is_empty() {
        let mut tops: Vec<&str> = parameters.iter().map(|name| top(name)).collect();
        let mut seen = BTreeSet::new();
        tops.retain(|name| seen.insert(*name));
        return format!("names begin with {}", quoted(&tops));
    }
    let nearest: Vec<&str> = nearest.into_iter().map(|(name, _)| name).collect();
    format!("did you mean {}?", quoted(&nearest[..nearest.len().min(3)]))
}

/// Smallest Jaro-Winkler similarity of a name that is suggested.
const NEAR: f64 = 0.85;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::clip::ClipTask;
    use holdall_models::config::ClipConfig;

    fn task(labels: Option<usize>) -> Arc<dyn Task> {
        Arc::new(ClipTask::new(ClipConfig::preset("small").unwrap(), labels))
    }

    fn found(freeze: &str, labels: Option<usize>) -> Result<Frozen, String> {
        let freeze: Freeze = serde_saphyr::from_str(freeze).unwrap();
        resolve(&freeze, &task(labels)).map_err(|error| error.to_string())
    }

    fn blocks_of(prefix: &str) -> usize {
        let graph = write_parameters(&StepConfig::new(task(None)));
        let parameters = graph.parameters().iter();
        let blocks = parameters.filter(|one| covers(prefix, &one.name));
        let blocks = blocks.filter_map(|one| block_of(&one.name, prefix.len()));
        blocks.collect::<BTreeSet<_>>().len()
    }

    #[test]
    fn all_but_the_last_blocks_leaves_what_follows_them() {
        let frozen = found("{vision_model: all but 1}", None).unwrap();
        let last = blocks_of("vision_model") - 1;
        assert!(last >= 1);
        let trained = |name: &str| !frozen.iter().any(|frozen| frozen.starts_with(name));
        assert!(frozen.contains("vision_model.embeddings.class_embedding"));
        assert!(frozen.contains("vision_model.encoder.layers.0.layer_norm1.weight"));
        assert!(trained(&format!("vision_model.encoder.layers.{last}.")));
        assert!(trained("vision_model.post_layernorm") && trained("text_model"));
        let all = found("[vision_model]", None).unwrap();
        assert!(all.is_superset(&frozen) && all.contains("vision_model.post_layernorm.weight"));
    }

    #[test]
    fn heads_are_what_has_their_rate() {
        let frozen = found("all but heads", Some(3)).unwrap();
        assert!(frozen.contains("logit_scale") && !frozen.contains("head.bias"));
        let dim = ClipConfig::preset("small").unwrap().projection_dim as u64;
        let step = StepConfig {
            frozen,
            ..StepConfig::new(task(Some(3)))
        };
        let count = ParameterCount::of(&write_parameters(&step));
        assert_eq!(count.trained, 3 * (dim + 1));
        let error = found("all but heads", None).unwrap_err();
        assert!(
            error.contains("expected parameters with the heads' learning rate; clip has none"),
            "{error}"
        );
    }

    #[test]
    fn what_cannot_be_frozen_is_answered() {
        let blocks = blocks_of("vision_model");
        for (freeze, expected) in [
            ("[vision_modle]", "did you mean `vision_model`"),
            ("[\"*.biass\"]", "hint: "),
            ("[xyz]", "hint: names begin with "),
            ("[\"*\"]", "would be frozen, expected some to train"),
            (
                "[\"*.q_proj.*\"]",
                "k_proj.weight is not, expected both or neither",
            ),
            (
                "{logit_scale: all but 1}",
                "`logit_scale` has no numbered blocks",
            ),
            (
                "{vision_model: all but 99}",
                &*format!("`vision_model` has {blocks}\n"),
            ),
        ] {
            let error = found(freeze, None).unwrap_err();
            assert!(error.starts_with("train.freeze: "), "{error}");
            assert!(
                error.contains(expected) && error.contains("hint: "),
                "{freeze}: {error}"
            );
        }
    }
}
