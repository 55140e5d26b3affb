//! What is saved is what was trained, and reads back as it was.

use holdall_models::folder::ModelFolder;
use holdall_plan::Recompute;
use holdall_train::engine::optimizer::StepScalars;
use holdall_train::tasks::clip::save_weights;

use crate::support::{
    Split, config_of, fixture, golden_batch, on_cpu, read_tensors, read_weights, step,
};

#[test]
fn a_trained_model_is_saved_and_read_back_bit_for_bit() {
    let device = on_cpu(2);
    let folder = ModelFolder::open(&fixture("clip_quick")).unwrap();
    let golden = read_tensors(&fixture("clip_quick").join("golden.safetensors"));
    let (task, batch) = golden_batch(folder.clip_config().unwrap(), &golden);
    let split = Split {
        batch_size: 4,
        kept: 1,
        recompute: Recompute::Cheap,
    };
    let mut step = step(&device, &config_of(&task), 6, split);
    read_weights(&device, &mut step, &folder);
    let scalars = StepScalars {
        step: 1,
        rates: &[1e-3, 1e-3],
        loss_scale: 1.0,
    };
    step.run(&device, &batch, &scalars).unwrap();
    let trained = step.named_weights().unwrap();
    for shard_bytes in [None, Some(40_000)] {
        let saved = tempfile::tempdir().unwrap();
        save_weights(&task, &step, saved.path(), shard_bytes).unwrap();
        let sharded = saved.path().join("model.safetensors.index.json").exists();
        assert_eq!(sharded, shard_bytes.is_some());
        let again = ModelFolder::open(saved.path()).unwrap();
        again.check().unwrap();
        assert_eq!(again.config(), folder.config());
        step.set_weights(&device, |_, values| {
            values.fill(f32::NAN);
            Ok::<(), ()>(())
        })
        .unwrap();
        read_weights(&device, &mut step, &again);
        for (name, values) in step.named_weights().unwrap() {
            assert_eq!(values, trained[&name], "{name}");
        }
    }
}
