//! Steps that pause and steps that are dropped, on the CPU.

use holdall_device::Arithmetic;
use holdall_models::config::ClipConfig;

use crate::support::on_cpu;
use crate::support::parts_case::assert_parts_are_a_step;

#[test]
fn a_pause_changes_no_bit_and_a_step_without_its_update_has_not_happened() {
    let model = ClipConfig::preset("small").unwrap();
    assert_parts_are_a_step(&on_cpu(2), model, Arithmetic::F32);
}
