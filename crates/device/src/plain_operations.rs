//! Operations that the planner need not ask much about.

/// Pattern of the operations that are one pass over memory on every device: no product, no scratch, one kernel.
///
/// Whoever answers for operations matches this and names every other one. A new operation compiles once it is either here or
/// has an answer everywhere.
macro_rules! plain_operations {
    () => {
        ::holdall_graph::Op::Activate(_)
            | ::holdall_graph::Op::ActivateGrad(_)
            | ::holdall_graph::Op::LayerNorm(_)
            | ::holdall_graph::Op::Embedding(_)
            | ::holdall_graph::Op::AddPositions(_)
            | ::holdall_graph::Op::Repeat(_)
            | ::holdall_graph::Op::MixPictures(_)
            | ::holdall_graph::Op::Patchify(_)
            | ::holdall_graph::Op::ClassToken(_)
            | ::holdall_graph::Op::GatherRows(_)
            | ::holdall_graph::Op::ScatterRows(_)
            | ::holdall_graph::Op::MeanTokens(_)
            | ::holdall_graph::Op::MeanTokensGrad(_)
            | ::holdall_graph::Op::ScaleColumns(_)
            | ::holdall_graph::Op::Dropout(_)
            | ::holdall_graph::Op::Normalize(_)
            | ::holdall_graph::Op::NormalizeGrad(_)
            | ::holdall_graph::Op::GroupNorm(_)
            | ::holdall_graph::Op::Pool2d(_)
            | ::holdall_graph::Op::Pool2dGrad(_)
            | ::holdall_graph::Op::Upsample2d(_)
            | ::holdall_graph::Op::Upsample2dGrad(_)
            | ::holdall_graph::Op::NormalizePixels(_)
            | ::holdall_graph::Op::PixelLossGrad(_)
            | ::holdall_graph::Op::OverlapSumsGrad(_)
            | ::holdall_graph::Op::Add(_)
            | ::holdall_graph::Op::AddInto(_)
            | ::holdall_graph::Op::AddRounded(_)
            | ::holdall_graph::Op::Cast(_)
            | ::holdall_graph::Op::AdamW(_)
            | ::holdall_graph::Op::WeightAverages(_)
    };
}
