//! From frame tokens to one feature per clip.
//!
//! ```text
//! mean                 normalise(mean(normalise(visual_projection(x))))                       x: post_layernorm(class tokens)
//! temporal, projected  the same on  y + layers(y + positions),  y = visual_projection(x)
//! temporal, hidden     normalise(visual_projection(mean(x + layers(x + positions))))
//! attention            normalise(visual_projection(mean(post_layernorm(attention(queries, norm(tokens + positions))))))
//! ```
//!
//! Means and attention leave out missing frames. The first two are CLIP4Clip's meanP and seqTransf.
//!
//! Legend: `b` samples, `f` frames, `s` frame tokens, `n` queries, `d` width, `p` projection.

use holdall_graph::{Decay, Graph, ValueId};

use super::FrameCounts;
use super::config::{Pooling, TemporalInput, VideoTextConfig};
use crate::clip::project;
use crate::transformer::{Use, linear_parameters, norm};

pub(crate) const TEMPORAL_POSITIONS: &str = "temporal.positions";
pub(crate) const TEMPORAL_LAYERS: &str = "temporal.layers";
pub(crate) const ATTENTION_POOL: &str = "attention_pool";
pub(super) const POST_NORM: &str = "vision_model.post_layernorm";
const PROJECTION: &str = "visual_projection";

/// Writes the pooling of all frame tokens, or of class tokens where only these exist, into `features_bp`.
pub(super) fn write(
    graph: &mut Graph,
    config: &VideoTextConfig,
    tokens_bsd: ValueId,
    counts: Option<FrameCounts>,
    features_bp: ValueId,
) {
    let frames = counts.map(|counts| counts.frames);
    let projection = config.projection_dim;
    let pooled_b1d = match config.pooling {
        Pooling::Mean => {
            let y_bfp = project_frames(graph, config, tokens_bsd);
            return mean_of_directions(graph, y_bfp, frames, features_bp);
        }
        Pooling::Temporal {
            place: TemporalInput::Projected,
            ..
        } => {
            let y_bfp = project_frames(graph, config, tokens_bsd);
            let y_bfp = add_temporal(graph, config, y_bfp, frames);
            return mean_of_directions(graph, y_bfp, frames, features_bp);
        }
        Pooling::Temporal {
            place: TemporalInput::Hidden,
            ..
        } => {
            let x_bfd = class_tokens(graph, config, tokens_bsd);
            let x_bfd = add_temporal(graph, config, x_bfd, frames);
            graph.mean_tokens("mean of frames", x_bfd, 0, frames)
        }
        Pooling::Attention { queries, heads } => {
            let key_lengths = counts.map(|counts| counts.tokens);
            let x_bnd = graph.block(ATTENTION_POOL, |graph| {
                attention_pool(graph, config, tokens_bsd, [queries, heads], key_lengths)
            });
            let x_bnd = norm(graph, POST_NORM, x_bnd, config.vision.layer_norm_eps);
            graph.mean_tokens("mean of queries", x_bnd, 0, None)
        }
    };
    project(graph, PROJECTION, pooled_b1d, projection, features_bp);
}

/// The class token of every frame after the last norm, `[b, f, d]`.
fn class_tokens(graph: &mut Graph, config: &VideoTextConfig, tokens_bsd: ValueId) -> ValueId {
    let [batch, tokens, width] = *graph.shape(tokens_bsd).dims() else {
        unreachable!("frame tokens have three dimensions");
    };
    let frames = config.frames();
    let each = [batch * frames, tokens / frames, width];
    let x = graph.reshape(tokens_bsd, &each);
    let x = graph.first_tokens(x);
    let x = norm(graph, POST_NORM, x, config.vision.layer_norm_eps);
    graph.reshape(x, &[batch, frames, width])
}

fn project_frames(graph: &mut Graph, config: &VideoTextConfig, tokens_bsd: ValueId) -> ValueId {
    let x_bfd = class_tokens(graph, config, tokens_bsd);
    let shape = [config.projection_dim, config.vision.hidden_size];
    let weight = graph.parameter(&format!("{PROJECTION}.weight"), &shape, Decay::Yes);
    graph.linear(PROJECTION, x_bfd, weight, None, None)
}

/// `x + layers(x + positions)`
fn add_temporal(
    graph: &mut Graph,
    config: &VideoTextConfig,
    x_bfd: ValueId,
    frame_counts: Option<ValueId>,
) -> ValueId {
    let Some(blocks) = config.temporal_blocks() else {
        return x_bfd;
    };
    let shape = [config.frames(), blocks.width];
    let positions = graph.parameter(TEMPORAL_POSITIONS, &shape, Decay::Yes);
    let placed_bfd = graph.add_positions("temporal.frames", x_bfd, positions, 1);
    let usage = Use {
        key_lengths_b: frame_counts,
        ..Use::default()
    };
    let mixed_bfd = blocks.write(graph, "temporal", placed_bfd, &usage);
    graph.add("temporal.sum", x_bfd, mixed_bfd)
}

/// Mean of unit-length vectors, normalised again.
fn mean_of_directions(
    graph: &mut Graph,
    y_bfp: ValueId,
    frame_counts: Option<ValueId>,
    features_bp: ValueId,
) {
    let shape = graph.shape(y_bfp);
    let unit_bfp = graph.activation("frame features", shape.dims());
    graph.normalize_into("frame features", y_bfp, unit_bfp);
    let mean_b1p = graph.mean_tokens("mean of frames", unit_bfp, 0, frame_counts);
    graph.normalize_into("clip features", mean_b1p, features_bp);
}

/// Attention of learned queries over all frame tokens, `[b, n, d]`.
fn attention_pool(
    graph: &mut Graph,
    config: &VideoTextConfig,
    tokens_bsd: ValueId,
    [num_queries, num_heads]: [usize; 2],
    key_lengths_b: Option<ValueId>,
) -> ValueId {
    let name = |part: &str| format!("{ATTENTION_POOL}.{part}");
    let [batch, tokens, width] = *graph.shape(tokens_bsd).dims() else {
        unreachable!("frame tokens have three dimensions");
    };
    let frames = config.frames();
    let positions = graph.parameter(&name("positions"), &[frames, width], Decay::Yes);
    let x_bsd = graph.add_positions(&name("tokens"), tokens_bsd, positions, tokens / frames);
    let h_bsd = norm(graph, &name("norm"), x_bsd, config.vision.layer_norm_eps);
    let packed = |graph: &mut Graph, kind: &str, dims: &[usize], decay| {
        let both =
            ["k_proj", "v_proj"].map(|part| (name(&format!("{part}.{kind}")), dims.to_vec()));
        graph.packed_parameters(&both, decay)
    };
    let weight = packed(graph, "weight", &[width, width], Decay::Yes);
    let bias = packed(graph, "bias", &[width], Decay::No);
    let kv = graph.linear_with_keys(&name("kv"), h_bsd, weight, bias, 0..width);
    let [k, v] = [0, 1].map(|part| graph.columns(kv, part * width, width));
    let queries_nd = graph.parameter(&name("queries"), &[num_queries, width], Decay::Yes);
    let queries_bnd = graph.repeat(&name("repeated"), queries_nd, batch);
    let [weight, bias] = linear_parameters(graph, &name("q_proj"), [width, width]);
    let q = graph.linear(&name("q_proj"), queries_bnd, weight, Some(bias), None);
    let mixed_bnd = graph.attention(
        &name("attention"),
        [q, k, v],
        key_lengths_b,
        num_heads,
        false,
    );
    let [weight, bias] = linear_parameters(graph, &name("out_proj"), [width, width]);
    graph.linear(&name("out_proj"), mixed_bnd, weight, Some(bias), None)
}
