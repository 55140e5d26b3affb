//! The source pixels under the window of each result pixel.

/// One direction of a set of windows. Result pixel `start + number * step` is the sum over `taps` source pixels, from
/// `first + number * stride` on; position `at` in the window has the weights of kernel position `kernel_first + at * kernel_step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axis {
    pub start: usize,
    pub step: usize,
    /// Number of result pixels.
    pub count: usize,
    pub stride: usize,
    pub first: isize,
    pub taps: usize,
    pub kernel_first: usize,
    pub kernel_step: isize,
}

impl Axis {
    /// The kernel position for position `at` of the window.
    pub fn kernel_at(&self, at: usize) -> usize {
        (self.kernel_first as isize + at as isize * self.kernel_step) as usize
    }

    /// Source pixels under the windows of `count` consecutive result pixels.
    pub fn span(&self, count: usize) -> usize {
        match count {
            0 => 0,
            count => (count - 1) * self.stride + self.taps,
        }
    }
}

/// Windows of evenly spaced result pixels: down and across.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Windows {
    pub down: Axis,
    pub across: Axis,
}

impl Windows {
    /// A kernel that slides over the source: one window for every pixel of the result.
    pub fn sliding(
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        result: [usize; 2],
    ) -> Windows {
        let axis = |axis: usize| Axis {
            start: 0,
            step: 1,
            count: result[axis],
            stride: stride[axis],
            first: -(padding[axis] as isize),
            taps: kernel[axis],
            kernel_first: 0,
            kernel_step: 1,
        };
        Windows {
            down: axis(0),
            across: axis(1),
        }
    }

    /// Positions per window.
    pub fn taps(&self) -> usize {
        self.down.taps * self.across.taps
    }
}

/// Sets of windows that together cover every pixel of a result.
#[derive(Clone, Copy, Debug)]
pub(super) enum AllWindows {
    /// The kernel slides over the source.
    Sliding(Windows),
    /// The kernel slides over the result, and the source is the output of that convolution. Result pixels with the same offset within the
    /// stride use the same kernel positions.
    Reversed {
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        result: [usize; 2],
    },
}

impl AllWindows {
    /// One set of windows per offset within the stride.
    pub fn each(&self) -> impl Iterator<Item = Windows> + use<> {
        let all = *self;
        let places = match all {
            AllWindows::Sliding(_) => [1, 1],
            AllWindows::Reversed { stride, result, .. } => {
                [0, 1].map(|axis| stride[axis].min(result[axis]))
            }
        };
        (0..places[0] * places[1]).map(move |place| match all {
            AllWindows::Sliding(windows) => windows,
            AllWindows::Reversed {
                kernel,
                stride,
                padding,
                result,
            } => {
                let axis = |axis: usize, start: usize| {
                    let [kernel, stride, padding, result] =
                        [kernel, stride, padding, result].map(|sizes| sizes[axis]);
                    reversed([kernel, stride, padding, result], start)
                };
                Windows {
                    down: axis(0, place / places[1]),
                    across: axis(1, place % places[1]),
                }
            }
        })
    }
}

/// Result pixels `start`, `start + stride` and so on. Pixel `i` and kernel position `k` meet at source pixel
/// `(i + padding - k) / stride`.
fn reversed([kernel, stride, padding, result]: [usize; 4], start: usize) -> Axis {
    let smallest = (start + padding) % stride;
    let taps = kernel.saturating_sub(smallest).div_ceil(stride);
    let last = ((start + padding - smallest) / stride) as isize;
    Axis {
        start,
        step: stride,
        count: (result - start).div_ceil(stride),
        stride: 1,
        first: last - taps as isize + 1,
        taps,
        kernel_first: smallest + stride * taps.saturating_sub(1),
        kernel_step: -(stride as isize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every pair of a result pixel and a kernel position along one direction, with its source pixel.
    fn meetings(axis: &Axis, source: usize) -> Vec<[usize; 3]> {
        let mut found = Vec::new();
        for number in 0..axis.count {
            for at in 0..axis.taps {
                let under = axis.first + (number * axis.stride + at) as isize;
                if (0..source as isize).contains(&under) {
                    let result = axis.start + number * axis.step;
                    found.push([result, axis.kernel_at(at), under as usize]);
                }
            }
        }
        found.sort_unstable();
        found
    }

    #[test]
    fn reversed_windows_have_the_meetings_of_sliding_ones() {
        for kernel in 1..8 {
            for stride in 1..4 {
                for padding in 0..4 {
                    for size in 1..12 {
                        if size + 2 * padding < kernel {
                            continue;
                        }
                        let slid = (size + 2 * padding - kernel) / stride + 1;
                        let sides = |number: usize| [number; 2];
                        let (kernel, stride, padding) =
                            (sides(kernel), sides(stride), sides(padding));
                        let sliding = Windows::sliding(kernel, stride, padding, sides(slid));
                        let expected = meetings(&sliding.across, size);
                        let reversed = AllWindows::Reversed {
                            kernel,
                            stride,
                            padding,
                            result: sides(size),
                        };
                        let mut found: Vec<[usize; 3]> = reversed
                            .each()
                            .filter(|windows| windows.down.start == 0)
                            .flat_map(|windows| meetings(&windows.across, slid))
                            .map(|[result, at, under]| [under, at, result])
                            .collect();
                        found.sort_unstable();
                        assert_eq!(found, expected, "{kernel:?} {stride:?} {padding:?} {size}");
                    }
                }
            }
        }
    }
}
