//! The list of operations that need no planning beyond their operands.

/// Pattern of the operations that are one pass over memory on every device: no product, no scratch, one kernel.
///
/// Each target matches this pattern and lists every other operation, so that a new operation compiles once it is either in the
/// pattern or in every target.
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
