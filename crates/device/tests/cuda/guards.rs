//! Guards between the tensors of a plan, on the software card: an access of the arena that lies in no tensor names kernel and line.
//!
//! On with `HOLDALL_SOFTWARE_GPU_GUARD_TENSORS=1`. Plans then keep a gap behind every tensor and let no two of them share memory, kernels
//! are compiled with a check at every access, and the card is told which bytes of the arena belong to tensors.

use std::ffi::c_int;

use holdall_graph::NodeView;
use holdall_plan::{Place, Spacing, StepPlan, Target};

/// Bytes behind every tensor: more than the widest access of a kernel.
const GAP_BYTES: u64 = 256;

pub fn guards_tensors() -> bool {
    std::env::var_os("HOLDALL_SOFTWARE_GPU_GUARD_TENSORS").is_some()
}

/// A device whose tensors lie apart.
pub struct Apart<'a>(pub &'a dyn Target);

impl Target for Apart<'_> {
    fn spacing(&self) -> Spacing {
        Spacing {
            gap_bytes: Some(GAP_BYTES),
            ..self.0.spacing()
        }
    }

    fn has_landing(&self) -> bool {
        self.0.has_landing()
    }

    fn has_lanes(&self) -> bool {
        self.0.has_lanes()
    }

    fn busy(&self, node: NodeView<'_>) -> f64 {
        self.0.busy(node)
    }

    fn workspace_bytes(&self, node: NodeView<'_>) -> u64 {
        self.0.workspace_bytes(node)
    }

    fn seconds(&self, node: NodeView<'_>) -> f64 {
        self.0.seconds(node)
    }

    fn overhead_bytes(&self, largest_library_bytes: u64) -> u64 {
        self.0.overhead_bytes(largest_library_bytes)
    }

    fn page_bytes(&self) -> u64 {
        self.0.page_bytes()
    }

    fn library_bytes(&self, node: NodeView<'_>) -> u64 {
        self.0.library_bytes(node)
    }
}

/// Tells the software card which bytes of the plan's arena belong to tensors, and has it fill them with NaNs: before every run, so that
/// a kernel that reads what this run has not written is seen. The machine is made already: choosing algorithms writes to the whole arena.
pub fn guard_tensors(plan: &StepPlan) {
    if !guards_tensors() {
        return;
    }
    let mut is_inside = vec![0u8; plan.arena_bytes as usize];
    let mut mark =
        |first: u64, bytes: u64| is_inside[first as usize..(first + bytes) as usize].fill(1);
    for instruction in plan
        .programs
        .iter()
        .flat_map(|program| &program.instructions)
    {
        let outputs = instruction.outputs.iter().flatten().map(|(place, _)| place);
        for place in instruction.inputs.iter().chain(outputs) {
            for slot in 0..plan.kept.max(1) as u64 {
                for micro in 0..plan.accumulation.max(1) as u64 {
                    let first =
                        place.offset + slot * place.slot_stride + micro * place.micro_stride;
                    mark(first, span_bytes(place));
                }
            }
        }
        let workspace = &instruction.workspace;
        for slot in 0..plan.kept.max(1) as u64 {
            mark(
                workspace.offset + slot * workspace.slot_stride,
                workspace.bytes,
            );
        }
    }
    let inputs = &plan.inputs;
    if let Some(landing) = inputs.landing {
        is_inside.copy_within(
            inputs.range.start as usize..inputs.range.end as usize,
            landing as usize,
        );
    }
    type Describe = unsafe extern "C" fn(*const u8, usize) -> c_int;
    // SAFETY: the card's library is open already, as the driver; the function has this type, and reads so many bytes.
    let answer = unsafe {
        let library = libloading::Library::new("libcuda.so.1").expect("the software card's driver");
        let describe = library
            .get::<Describe>(b"holdall_software_card_tensors")
            .expect("tensors can be guarded on the software card alone");
        describe(is_inside.as_ptr(), is_inside.len())
    };
    assert_eq!(answer, 0, "one arena of {} bytes", is_inside.len());
}

/// Bytes from a tensor's first element to the end of its last.
fn span_bytes(place: &Place) -> u64 {
    let extents = place.shape.dims().iter().zip(place.strides.dims());
    let last: usize = extents
        .map(|(extent, stride)| (extent.max(&1) - 1) * stride)
        .sum();
    ((last + 1) * place.dtype.bytes()) as u64
}
