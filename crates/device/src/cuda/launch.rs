//! Launches an instruction as products and kernels in a stream.
//!
//! Every operation runs through this module twice. [`LaunchPass::Prepare`] chooses algorithms for products and fills tables; [`LaunchPass::Issue`]
//! enqueues the work in the stream, which is captured as a graph or run directly.

/// The arguments of a kernel, in the kernel's order.
macro_rules! arguments {
    ($($argument:expr),* $(,)?) => {
        &[$(crate::cuda::driver::Argument::from($argument)),*]
    };
}

mod attention;
mod collective;
mod contrastive;
pub(super) mod conv;
mod elements;
pub(super) mod images;
mod linear;
mod losses;
mod tokens;
mod update;
mod vocabulary;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Mutex;

use holdall_graph::ops::activation::Activation;
use holdall_graph::{DType, MemorySpace, Op, Write};
use holdall_plan::{Instruction, Place, Program, ProgramId, StepPlan};

use super::buckets::Bucket;
use super::demand::{Demand, norm_parts};
use super::driver::{Argument, Buffer, Event, Stream};
use super::kernels::Kernels;
use super::product::{Factor, Product, ProductFormat};
use super::{Cuda, format_of};
use crate::{Arithmetic, DeviceError};

/// Purpose of a walk through a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaunchPass {
    /// Chooses algorithms and fills tables.
    Prepare,
    /// Enqueues the work.
    Issue,
}

/// Small data with the lifetime of the arena: the index of the micro-batch, and the tables of the update.
pub(super) struct Tables {
    memory: Buffer,
    placed: Mutex<Placed>,
}

/// First free byte, and the address of each instruction's table.
type Placed = (u64, HashMap<(ProgramId, usize), u64>);

impl Tables {
    pub fn new(plan: &StepPlan) -> Result<Tables, DeviceError> {
        let bytes = 256 + update::table_bytes(&plan.graph);
        Ok(Tables {
            memory: Buffer::new(bytes)?,
            placed: Mutex::new((256, HashMap::new())),
        })
    }

    /// Address of the micro-batch's index.
    pub fn micro(&self) -> u64 {
        self.memory.address
    }

    fn put(
        &self,
        key: (ProgramId, usize),
        bytes: &[u8],
        stream: &Stream,
    ) -> Result<(), DeviceError> {
        let mut placed = self
            .placed
            .lock()
            .expect("never poisoned: nothing panics with it");
        let at = placed.0;
        assert!(
            at + bytes.len() as u64 <= self.memory.bytes,
            "tables of the update fit"
        );
        placed.0 = (at + bytes.len() as u64).next_multiple_of(256);
        placed.1.insert(key, self.memory.address + at);
        stream.upload(self.memory.address + at, bytes.as_ptr(), bytes.len())?;
        stream.wait()
    }

    fn get(&self, key: (ProgramId, usize)) -> u64 {
        let placed = self
            .placed
            .lock()
            .expect("never poisoned: nothing panics with it");
        placed.1[&key]
    }
}

/// Walks through programs and issues their instructions.
#[derive(Clone, Copy)]
pub(super) struct Issuer<'a> {
    pub cuda: &'a Cuda,
    pub kernels: &'a Kernels,
    pub stream: &'a Stream,
    /// Streams for lanes other than the first.
    pub beside: &'a [Stream],
    pub base: u64,
    pub bytes: u64,
    /// First address and size of the pinned host memory.
    pub host: (u64, u64),
    pub tables: &'a Tables,
    pub arithmetic: Arithmetic,
    pub pass: LaunchPass,
    pub program: ProgramId,
    pub slot: usize,
    /// In the last pass: gradients that are exchanged during the pass, and the stream of the exchanges.
    pub meanwhile: Option<(&'a [Bucket], &'a Stream)>,
    /// Offsets of gradients that were exchanged before the collective.
    pub travelled: &'a HashSet<u64>,
}

/// An operand as a matrix of evenly spaced rows.
#[derive(Clone, Copy, Debug)]
struct Matrix {
    address: u64,
    rows: usize,
    width: usize,
    stride: usize,
    dtype: DType,
    /// Elements that the address advances per micro-batch.
    micro: usize,
}

impl Matrix {
    fn num_elements(&self) -> usize {
        self.rows * self.width
    }

    fn is_contiguous(&self) -> bool {
        self.stride == self.width || self.rows <= 1
    }

    fn factor(&self, transposed: bool) -> Factor {
        Factor {
            address: self.address,
            stride: self.stride,
            transposed,
        }
    }

    /// Address and stride, for the result of a product.
    fn result(&self) -> (u64, usize) {
        (self.address, self.stride)
    }
}

/// Default number of threads of a block.
const BLOCK: usize = 256;

/// Bytes per access of a thread.
const ACCESS: usize = 16;

fn rows_of_warps(rows: usize) -> [usize; 3] {
    [rows.div_ceil(BLOCK / 32).max(1), 1, 1]
}

impl<'a> Issuer<'a> {
    pub fn program(&self, program: &Program) -> Result<(), DeviceError> {
        let mut index = 0;
        let lanes = |a: &Instruction, b: &Instruction| a.lane.is_some() == b.lane.is_some();
        for run in program.instructions.chunk_by(lanes) {
            let range = index..index + run.len();
            index = range.end;
            let side_by_side = run.iter().any(|one| one.lane != run[0].lane);
            if side_by_side {
                self.side_by_side(program, range.clone())?;
                self.send_final(range)?;
                continue;
            }
            for part in self.parts(range) {
                self.in_turn(program, part.clone())?;
                self.send_final(part)?;
            }
        }
        let Some((_, stream)) = self.meanwhile else {
            return Ok(());
        };
        let arrived = Event::new()?;
        arrived.record(stream)?;
        self.stream.wait_for(&arrived)
    }

    /// Splits a range of instructions after each instruction that makes gradients final.
    fn parts(&self, range: Range<usize>) -> Vec<Range<usize>> {
        let buckets = self.meanwhile.map_or(&[][..], |(buckets, _)| buckets);
        let ends = buckets.iter().map(|bucket| bucket.after + 1);
        let ends = ends.filter(|&end| range.start < end && end < range.end);
        let mut start = range.start;
        let mut parts: Vec<Range<usize>> = ends
            .map(|end| std::mem::replace(&mut start, end)..end)
            .collect();
        parts.push(start..range.end);
        parts
    }

    /// Starts the exchange of the gradients that are final after these instructions.
    fn send_final(&self, range: Range<usize>) -> Result<(), DeviceError> {
        let Some((buckets, stream)) = self.meanwhile else {
            return Ok(());
        };
        for bucket in buckets.iter().filter(|one| range.contains(&one.after)) {
            let ready = Event::new()?;
            ready.record(self.stream)?;
            stream.wait_for(&ready)?;
            collective::send(self, &bucket.places, stream)?;
        }
        Ok(())
    }

    /// Runs each lane in its own stream; later instructions wait for all lanes.
    fn side_by_side(&self, program: &Program, range: Range<usize>) -> Result<(), DeviceError> {
        let others: Vec<Issuer<'_>> = self
            .beside
            .iter()
            .map(|beside| Issuer {
                stream: beside,
                ..*self
            })
            .collect();
        let (before, after) = (Event::new()?, Event::new()?);
        before.record(self.stream)?;
        for other in &others {
            other.stream.wait_for(&before)?;
        }
        for index in range {
            let lane = program.instructions[index].lane.unwrap_or(0);
            match lane.checked_sub(1).and_then(|lane| others.get(lane)) {
                Some(other) => other.instruction(program, index)?,
                None => self.instruction(program, index)?,
            }
        }
        for other in &others {
            after.record(other.stream)?;
            self.stream.wait_for(&after)?;
        }
        Ok(())
    }

    fn in_turn(&self, program: &Program, range: Range<usize>) -> Result<(), DeviceError> {
        let mut index = range.start;
        while index < range.end {
            let together = self.cleared_together(program, index)?;
            if together > 0 {
                index += together;
                continue;
            }
            self.instruction(program, index)?;
            index += 1;
        }
        Ok(())
    }

    /// Clears consecutive zero-filled spans together; returns the number of instructions that this replaces.
    fn cleared_together(&self, program: &Program, first: usize) -> Result<usize, DeviceError> {
        let mut spans: Vec<Range<u64>> = Vec::new();
        let mut count = 0;
        for instruction in &program.instructions[first..] {
            let (Op::Fill(fill), [Some((place, _))]) =
                (&instruction.op, instruction.outputs.as_slice())
            else {
                break;
            };
            let matrix = self.matrix(place);
            // Whole storages are filled as flat memory; a table has one address for all slots.
            let is_whole = place.shape.dims().len() == 1 && place.slot_stride == 0;
            if fill.value != 0.0 || !is_whole {
                break;
            }
            let bytes = (matrix.num_elements() * matrix.dtype.bytes()) as u64;
            let here = matrix.address..matrix.address + bytes;
            match spans.last_mut() {
                // The gap between neighbours is only padding.
                Some(before) if here.start == before.end.next_multiple_of(256) => {
                    before.end = here.end;
                }
                _ => spans.push(here),
            }
            count += 1;
        }
        self.clear(first, spans)?;
        Ok(count)
    }

    /// Sets spans to zero: each long span by a memset, all short spans by one launch.
    fn clear(&self, index: usize, mut spans: Vec<Range<u64>>) -> Result<(), DeviceError> {
        let length = |span: &Range<u64>| span.end - span.start;
        if spans.iter().filter(|span| length(span) < LONG_SPAN).count() > 1 {
            let short = spans.extract_if(.., |span| length(span) < LONG_SPAN);
            let words = short.flat_map(|span| [span.start, length(&span)]);
            let table: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            let key = (self.program, index);
            if self.pass == LaunchPass::Prepare {
                self.tables.put(key, &table, self.stream)?;
            }
            let grid = [table.len() / SPAN_BYTES, 1, 1];
            let table = self.tables.get(key);
            self.launch("clear_spans", grid, BLOCK, arguments![table])?;
        }
        if self.pass == LaunchPass::Issue {
            for span in spans {
                self.stream.clear(span.start, length(&span))?;
            }
        }
        Ok(())
    }

    pub fn instruction(&self, program: &Program, index: usize) -> Result<(), DeviceError> {
        let o = Operands {
            issuer: self,
            instruction: &program.instructions[index],
        };
        match &o.instruction.op {
            Op::Linear(op) => linear::forward(op, &o),
            Op::LinearInputGrad(op) => linear::input_grad(op, &o, program, index),
            Op::LinearWeightGrad(op) => linear::weight_grad(op, &o, program, index),
            Op::Activate(op) => self.activate(op.activation, &o),
            Op::ActivateGrad(op) => self.activate_grad(op.activation, o.result(0).0, o.input(1)),
            Op::LayerNorm(op) => self.layer_norm(op.eps, &o),
            Op::LayerNormGrad(_) => self.layer_norm_grad(&o),
            Op::Attention(op) => attention::forward(op, &o),
            Op::AttentionGrad(op) => attention::backward(&op.forward, &o),
            Op::CachedAttention(op) => attention::cached(op, &o),
            Op::Embedding(_) => tokens::embedding(&o),
            Op::EmbeddingGrad(_) => tokens::embedding_grad(&o),
            Op::MixPictures(op) => tokens::mix_pictures(op, &o),
            Op::Patchify(op) => tokens::patchify(op, &o),
            Op::ClassToken(_) => tokens::class_token(&o),
            Op::ClassTokenGrad(op) => tokens::class_token_grad(op.num_prefix, &o),
            Op::AddPositions(op) => tokens::add_positions(op.repeat, &o),
            Op::AddPositionsGrad(op) => tokens::table_grad(op.repeat, &o),
            Op::Repeat(_) => tokens::repeat(&o),
            Op::RepeatGrad(_) => tokens::table_grad(1, &o),
            Op::GatherRows(_) => tokens::gather_rows(&o),
            Op::ScatterRows(_) => tokens::scatter_rows(&o),
            Op::MeanTokens(op) => tokens::mean_tokens(op.first, &o),
            Op::MeanTokensGrad(op) => tokens::mean_tokens_grad(op.first, &o),
            Op::ScaleColumns(_) => elements::scale_columns(&o),
            Op::ScaleColumnsGrad(op) => elements::scale_columns_grad(op, &o),
            Op::Dropout(op) => elements::dropout(op, &o),
            Op::Normalize(_) => self.normalize(&o),
            Op::NormalizeGrad(_) => self.normalize_grad(&o),
            Op::CrossEntropy(op) => losses::cross_entropy(op.smoothing, &o),
            Op::CrossEntropyGrad(op) => losses::cross_entropy_grad(op.smoothing, &o),
            Op::PointwiseLoss(op) => losses::pointwise(op.loss, &o),
            Op::PointwiseLossGrad(op) => losses::pointwise_grad(op.loss, &o),
            Op::Contrastive(op) => contrastive::forward(op, &o),
            Op::ContrastiveGrad(op) => contrastive::backward(op, &o),
            Op::VocabularyLoss(op) => vocabulary::loss(op, &o),
            Op::VocabularyLossGrad(op) => vocabulary::loss_grad(op, &o),
            Op::TopTokens(op) => vocabulary::top_tokens(op, &o),
            Op::Conv2d(op) => conv::forward(op, &o),
            Op::Conv2dInputGrad(op) => conv::input_grad(op, &o),
            Op::Conv2dWeightGrad(op) => conv::weight_grad(op, &o),
            Op::TransposedConv2d(op) => conv::transposed::forward(op, &o),
            Op::TransposedConv2dInputGrad(op) => conv::transposed::input_grad(op, &o),
            Op::TransposedConv2dWeightGrad(op) => conv::transposed::weight_grad(op, &o),
            Op::GroupStatistics(op) => images::group_statistics(op, &o),
            Op::GroupNorm(op) => images::group_norm(op, &o),
            Op::GroupNormGrad(op) => images::group_norm_grad(op, &o),
            Op::Pool2d(op) => images::pool(op, &o),
            Op::Pool2dGrad(op) => images::pool_grad(op, &o),
            Op::Upsample2d(op) => images::upsample(op, &o),
            Op::Upsample2dGrad(op) => images::upsample_grad(op, &o),
            Op::NormalizePixels(op) => images::normalize_pixels(op, &o),
            Op::PixelLoss(op) => images::pixel_loss(op, &o),
            Op::PixelLossGrad(op) => images::pixel_loss_grad(op, &o),
            Op::OverlapSums(op) => images::overlap_sums(op, &o),
            Op::OverlapSumsGrad(op) => images::overlap_sums_grad(op, &o),
            Op::OverlapLoss(op) => images::overlap_loss(op, &o),
            Op::OverlapLossGrad(op) => images::overlap_loss_grad(op, &o),
            Op::Fill(op) => self.fill(op.value, &o),
            Op::Add(_) => self.add(&o),
            Op::AddInto(_) => self.add_into(&o),
            Op::AddRounded(_) => update::add_rounded(&o),
            Op::Cast(_) => self.cast(&o),
            Op::Collective(op) => collective::exchange(op, &o),
            Op::GradientNorm(_) => update::gradient_norm(index, &o),
            Op::AdamW(op) => update::adamw(op, index, &o),
            Op::WeightAverages(op) => update::weight_averages(op.action, index, &o),
        }
    }

    /// Fills the arena with noise.
    pub fn noise(&self) -> Result<(), DeviceError> {
        noise(
            self.kernels,
            self.stream,
            self.base,
            self.bytes,
            self.arithmetic,
        )
    }

    fn matrix(&self, place: &Place) -> Matrix {
        let (base, within) = match place.space {
            MemorySpace::Device => (self.base, self.bytes),
            MemorySpace::PinnedHost => self.host,
        };
        let address = base + place.offset + self.slot as u64 * place.slot_stride;
        let stride = place
            .shape
            .row_stride(&place.strides)
            .expect("operands of GPU kernels are matrices with evenly spaced rows");
        let (rows, width) = (place.shape.rows(), place.shape.width());
        let elements = match rows {
            0 => 0,
            rows => (rows - 1) * stride + width,
        };
        let bytes = place.dtype.bytes();
        assert!(
            address - base + (elements * bytes) as u64 <= within,
            "operand within its memory"
        );
        Matrix {
            address,
            rows,
            width,
            stride,
            dtype: place.dtype,
            micro: place.micro_stride as usize / bytes,
        }
    }

    fn launch(
        &self,
        name: &'static str,
        grid: [usize; 3],
        block: usize,
        arguments: &[Argument],
    ) -> Result<(), DeviceError> {
        match self.pass {
            LaunchPass::Prepare => Ok(()),
            LaunchPass::Issue if grid.contains(&0) => Ok(()),
            LaunchPass::Issue => self
                .kernels
                .launch(name, self.stream, grid, block, arguments),
        }
    }

    /// Grid for this many elements, several per access.
    fn grid(&self, elements: usize, dtype: DType) -> [usize; 3] {
        let each = ACCESS / dtype.bytes().max(2);
        [elements.div_ceil(each).div_ceil(BLOCK).max(1), 1, 1]
    }

    /// The format of the product library for a matrix.
    fn format(&self, dtype: DType) -> ProductFormat {
        match (dtype, self.arithmetic) {
            (DType::F32, Arithmetic::Tf32) => ProductFormat::Tf32,
            (DType::F32, _) => ProductFormat::F32,
            _ => format_of(self.arithmetic),
        }
    }

    fn activate(&self, activation: Activation, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
        self.activate_into(activation, o.result(0).0, o.input(0))
    }

    fn activate_into(
        &self,
        activation: Activation,
        y: Matrix,
        z: Matrix,
    ) -> Result<(), DeviceError> {
        let name = match activation {
            Activation::QuickGelu => "activate_quick",
            Activation::Gelu => "activate_erf",
            Activation::Relu => "activate_relu",
            Activation::LeakyRelu => "activate_leaky",
        };
        self.elementwise(name, y, z)
    }

    fn activate_grad(
        &self,
        activation: Activation,
        dy: Matrix,
        z: Matrix,
    ) -> Result<(), DeviceError> {
        let name = match activation {
            Activation::QuickGelu => "activate_grad_quick",
            Activation::Gelu => "activate_grad_erf",
            Activation::Relu => "activate_grad_relu",
            Activation::LeakyRelu => "activate_grad_leaky",
        };
        self.elementwise(name, dy, z)
    }

    fn elementwise(&self, name: &'static str, y: Matrix, x: Matrix) -> Result<(), DeviceError> {
        assert!(
            y.is_contiguous() && x.is_contiguous() && y.num_elements() == x.num_elements(),
            "contiguous operands of one size"
        );
        let elements = y.num_elements();
        self.launch(
            name,
            self.grid(elements, y.dtype),
            BLOCK,
            &[y.address.into(), x.address.into(), (elements as i64).into()],
        )
    }

    fn layer_norm(&self, eps: f64, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
        let (x, gamma, beta) = (o.input(0), o.input(1), o.input(2));
        let (y, _) = o.result(0);
        if x.width > WIDEST_NORM {
            return Err(DeviceError::Missing(format!(
                "layer norm of {} columns: expected at most {WIDEST_NORM} on a GPU\nhint: `--device cpu`",
                x.width
            )));
        }
        const THREADS: usize = 128;
        let per_block = if x.width <= WARP_WIDTH {
            THREADS / 32
        } else {
            1
        };
        self.launch(
            "layer_norm",
            [x.rows.div_ceil(per_block).max(1), 1, 1],
            THREADS,
            arguments![
                x.address,
                gamma.address,
                beta.address,
                y.address,
                o.output_address(1),
                o.output_address(2),
                x.rows as i64,
                x.width as i32,
                x.stride as i64,
                y.stride as i64,
                eps as f32,
            ],
        )
    }

    fn layer_norm_grad(&self, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
        let (dy, x, gamma) = (o.input(0), o.input(1), o.input(2));
        let (mean, rstd) = (o.input(3), o.input(4));
        let parameters = [o.output_address(0), o.output_address(1)];
        let dx = o.output(2);
        let wanted = parameters.iter().any(Option::is_some);
        let parts = norm_parts(x.rows, self.cuda.num_processors);
        let partials = wanted.then(|| o.scratch());
        let (dx_matrix, mode) = dx.unzip();
        self.launch(
            "layer_norm_grad",
            [parts, 1, 1],
            BLOCK,
            arguments![
                dy.address,
                x.address,
                gamma.address,
                mean.address,
                rstd.address,
                dx_matrix.map(|dx| dx.address),
                partials,
                x.rows as i64,
                x.width as i32,
                dy.stride as i64,
                x.stride as i64,
                dx_matrix.map_or(0, |dx| dx.stride) as i64,
                accumulates(mode),
            ],
        )?;
        let Some(partials) = partials else {
            return Ok(());
        };
        let modes = [0, 1].map(|index| o.output(index).map(|(_, mode)| mode));
        let mode = modes.into_iter().flatten().next();
        self.launch(
            "layer_norm_grad_finish",
            [(2 * x.width).div_ceil(32), 1, 1],
            512,
            arguments![
                partials,
                parts as i32,
                x.width as i32,
                parameters[0],
                parameters[1],
                accumulates(mode),
            ],
        )
    }

    fn normalize(&self, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
        let (x, (y, _)) = (o.input(0), o.result(0));
        let name = match y.dtype {
            DType::F32 => "normalize",
            _ => "normalize_within",
        };
        self.launch(
            name,
            rows_of_warps(x.rows),
            BLOCK,
            arguments![
                x.address,
                y.address,
                o.output_address(1),
                x.rows as i32,
                x.width as i32,
                x.stride as i64,
                y.stride as i64,
            ],
        )
    }

    fn normalize_grad(&self, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
        let (dy, y, inverse) = (o.input(0), o.input(1), o.input(2));
        let (dx, mode) = o.result(0);
        let name = match y.dtype {
            DType::F32 => "normalize_grad",
            _ => "normalize_within_grad",
        };
        self.launch(
            name,
            rows_of_warps(y.rows),
            BLOCK,
            arguments![
                dy.address,
                y.address,
                inverse.address,
                dx.address,
                y.rows as i32,
                y.width as i32,
                dy.stride as i64,
                y.stride as i64,
                dx.stride as i64,
                accumulates(Some(mode)),
            ],
        )
    }

    fn fill(&self, value: f64, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
        let (y, _) = o.result(0);
        let name = match y.dtype {
            DType::F32 => "fill_f32",
            _ => "fill",
        };
        let elements = y.num_elements();
        assert!(y.is_contiguous(), "what is filled is contiguous");
        self.launch(
            name,
            self.grid(elements, y.dtype),
            BLOCK,
            arguments![y.address, value as f32, elements as i64,],
        )
    }

    fn add(&self, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
        let (a, b, (y, _)) = (o.input(0), o.input(1), o.result(0));
        self.launch(
            "add",
            self.grid(y.num_elements(), y.dtype),
            BLOCK,
            arguments![
                y.address,
                a.address,
                b.address,
                y.rows as i64,
                y.width as i32,
                y.stride as i64,
                a.stride as i64,
                b.stride as i64,
            ],
        )
    }

    fn add_into(&self, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
        let (x, (y, mode)) = (o.moving(0), o.moving_result(0));
        assert_eq!(x.dtype, y.dtype, "added in one format");
        let name = match y.dtype {
            DType::F32 => "add_into_f32",
            _ => "add_into",
        };
        self.launch(
            name,
            self.grid(y.num_elements(), y.dtype),
            BLOCK,
            arguments![
                y.address,
                x.address,
                y.rows as i64,
                y.width as i32,
                y.stride as i64,
                x.stride as i64,
                accumulates(Some(mode)),
                self.tables.micro(),
                y.micro as i64,
                x.micro as i64,
            ],
        )
    }

    fn cast(&self, o: &Operands<'_, '_>) -> Result<(), DeviceError> {
        let (x, (y, mode)) = (o.input(0), o.result(0));
        let full = |matrix: Matrix| matrix.dtype == DType::F32;
        let is_flat = y.is_contiguous() && x.is_contiguous();
        let in_rows = |name: &'static str| {
            self.launch(
                name,
                self.grid(y.num_elements(), DType::F32),
                BLOCK,
                arguments![
                    y.address,
                    x.address,
                    y.rows as i64,
                    y.width as i32,
                    y.stride as i64,
                    x.stride as i64,
                    accumulates(Some(mode)),
                ],
            )
        };
        match (full(x), full(y)) {
            (true, false) if is_flat && mode == Write::Overwrite => {
                self.elementwise("cast_down", y, x)
            }
            (true, false) => in_rows("cast_down_rows"),
            (false, true) if is_flat => {
                let elements = y.num_elements();
                self.launch(
                    "cast_up",
                    self.grid(elements, x.dtype),
                    BLOCK,
                    arguments![
                        y.address,
                        x.address,
                        elements as i64,
                        accumulates(Some(mode)),
                    ],
                )
            }
            (false, true) => in_rows("cast_up_rows"),
            _ => self.add_into(o),
        }
    }
}

/// Maximum columns of a layer norm whose row fits into a block.
const WIDEST_NORM: usize = 4096;

/// Maximum columns of a layer norm whose row fits into a warp.
const WARP_WIDTH: usize = 1024;

/// Spans of at least this many bytes are cleared by a memset each.
const LONG_SPAN: u64 = 1 << 20;

/// Bytes per entry of the table of spans that are cleared together.
const SPAN_BYTES: usize = 16;

fn accumulates(mode: Option<Write>) -> i32 {
    i32::from(mode == Some(Write::Accumulate))
}

/// Fills memory with noise in the activations' format.
pub(super) fn noise(
    kernels: &Kernels,
    stream: &Stream,
    address: u64,
    bytes: u64,
    arithmetic: Arithmetic,
) -> Result<(), DeviceError> {
    let elements = bytes / arithmetic.compute().bytes() as u64;
    let grid = (elements as usize).div_ceil(BLOCK).clamp(1, 1 << 14);
    kernels.launch(
        "noise",
        stream,
        [grid, 1, 1],
        BLOCK,
        &[address.into(), (elements as i64).into()],
    )
}

/// The operands of an instruction.
struct Operands<'i, 'a> {
    issuer: &'i Issuer<'a>,
    instruction: &'i Instruction,
}

impl Operands<'_, '_> {
    fn num_inputs(&self) -> usize {
        self.instruction.inputs.len()
    }

    fn num_outputs(&self) -> usize {
        self.instruction.outputs.len()
    }

    fn input_place(&self, index: usize) -> &Place {
        &self.instruction.inputs[index]
    }

    /// An operand whose address may depend on the micro-batch.
    fn moving(&self, index: usize) -> Matrix {
        self.issuer.matrix(&self.instruction.inputs[index])
    }

    /// An operand whose address is independent of the micro-batch: a graph has fixed addresses.
    fn input(&self, index: usize) -> Matrix {
        let matrix = self.moving(index);
        assert_eq!(
            matrix.micro,
            0,
            "{}: input {index} moves with the micro-batch",
            self.instruction.op.rules().name()
        );
        matrix
    }

    fn moving_result(&self, index: usize) -> (Matrix, Write) {
        let (place, mode) = self.instruction.outputs[index]
            .as_ref()
            .expect("the result is read");
        (self.issuer.matrix(place), *mode)
    }

    /// An output, and whether it is added to; `None` if no instruction reads it.
    fn output(&self, index: usize) -> Option<(Matrix, Write)> {
        let (place, mode) = self.instruction.outputs.get(index)?.as_ref()?;
        let matrix = self.issuer.matrix(place);
        assert_eq!(matrix.micro, 0, "a result that moves with the micro-batch");
        Some((matrix, *mode))
    }

    fn output_address(&self, index: usize) -> Option<u64> {
        self.output(index).map(|(matrix, _)| matrix.address)
    }

    /// An output that is always present.
    fn result(&self, index: usize) -> (Matrix, Write) {
        self.output(index).expect("the result is read")
    }

    /// Address of the scratch of the operation's own kernels.
    fn scratch(&self) -> u64 {
        let workspace = self.instruction.workspace;
        self.issuer.base + workspace.offset + self.issuer.slot as u64 * workspace.slot_stride
    }

    /// Workspace of a product: address and size.
    fn product_workspace(&self) -> (u64, u64) {
        let input = |index: usize| self.instruction.inputs[index].shape;
        let own = Demand::of(
            &self.instruction.op,
            &input,
            self.instruction.inputs.len(),
            self.issuer.cuda.num_processors,
        )
        .scratch_bytes;
        let bytes = self.instruction.workspace.bytes.saturating_sub(own);
        (self.scratch() + own, bytes)
    }

    fn product(&self, product: &Product) -> Result<(), DeviceError> {
        let issuer = self.issuer;
        let (products, workspace) = (&issuer.cuda.products, self.product_workspace());
        match issuer.pass {
            LaunchPass::Prepare => products.prepare(product, workspace, issuer.stream),
            LaunchPass::Issue => products.run(product, workspace, issuer.stream),
        }
    }
}
