//! Rates of a card, measured at first use: the base of time predictions.

use super::driver::{Buffer, Event, Pinned};
use super::product::{Factor, Product, ProductFormat};
use super::target::PRODUCT_BYTES;
use super::{Arithmetic, Cuda, Stream, format_of};
use crate::DeviceError;

/// Rates of a card in one number format.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// Rate of products of large matrices.
    pub flops_per_second: f64,
    /// Bandwidth of the card's memory, reads and writes both counted.
    pub bytes_per_second: f64,
    /// Time from the end of a small kernel of a graph to the end of the next.
    pub seconds_per_kernel: f64,
    /// Bandwidth of copies from pinned host memory to the card.
    pub link_bytes_per_second: f64,
}

/// Rows and columns of the timed product.
const SIDE: usize = 4096;
const REPEATS: usize = 8;

/// Bytes of the timed copy from the host.
const LINK_BYTES: usize = 16 << 20;

impl Profile {
    /// Measures the rates; takes a tenth of a second.
    pub(super) fn measure(cuda: &Cuda, arithmetic: Arithmetic) -> Result<Profile, DeviceError> {
        let format = format_of(arithmetic);
        let element = match format {
            ProductFormat::F32 | ProductFormat::Tf32 => 4,
            ProductFormat::F16 | ProductFormat::Bf16 => 2,
        };
        let bytes = (SIDE * SIDE * element) as u64;
        let stream = Stream::new()?;
        let matrices = Buffer::new(3 * bytes + PRODUCT_BYTES)?;
        let kernels = cuda.kernels(arithmetic)?;
        let noise = |address: u64, bytes: u64| {
            super::launch::noise(&kernels, &stream, address, bytes, arithmetic)
        };
        noise(matrices.address, 3 * bytes)?;
        let at = |index: u64| matrices.address + index * bytes;
        let factor = |index| Factor {
            address: at(index),
            stride: SIDE,
            transposed: false,
        };
        let product = Product {
            rows: SIDE,
            outputs: SIDE,
            inner: SIDE,
            left: factor(0),
            right: factor(1),
            inputs: format,
            scale: 1.0,
            y: (at(2), SIDE),
            output: format,
            bias: None,
            added: None,
        };
        let workspace = (at(3), PRODUCT_BYTES);
        cuda.products.prepare(&product, workspace, &stream)?;
        let seconds = timed(&stream, &mut || {
            cuda.products.run(&product, workspace, &stream)
        })?;
        let flops_per_second = 2.0 * (SIDE as f64).powi(3) / seconds;
        let seconds = timed(&stream, &mut || stream.copy(at(1), at(0), bytes))?;
        let bytes_per_second = 2.0 * bytes as f64 / seconds;
        const KERNELS: usize = 64;
        let chain = stream.capture(|| {
            for _ in 0..KERNELS {
                noise(matrices.address, 256)?;
            }
            Ok(())
        })?;
        let seconds_of_chain = timed(&stream, &mut || stream.replay(&chain))?;
        let host = Pinned::new(LINK_BYTES)?;
        let seconds = timed(&stream, &mut || {
            stream.upload(matrices.address, host.as_ptr(), LINK_BYTES)
        })?;
        let link_bytes_per_second = LINK_BYTES as f64 / seconds;
        Ok(Profile {
            link_bytes_per_second,
            flops_per_second,
            bytes_per_second,
            seconds_per_kernel: seconds_of_chain / KERNELS as f64,
        })
    }
}

/// Mean seconds of several runs, after a warm-up run.
fn timed(
    stream: &Stream,
    work: &mut dyn FnMut() -> Result<(), DeviceError>,
) -> Result<f64, DeviceError> {
    let (before, after) = (Event::with_clock()?, Event::with_clock()?);
    work()?;
    before.record(stream)?;
    for _ in 0..REPEATS {
        work()?;
    }
    after.record(stream)?;
    after.wait()?;
    Ok(after.seconds_since(&before)? / REPEATS as f64)
}
