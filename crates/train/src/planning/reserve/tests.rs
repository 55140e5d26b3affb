//! Reserving with too little memory, on a simulated GPU.

use std::cell::RefCell;

use holdall_device::cpu::{Cpu, CpuTarget};

use super::*;
use crate::config::RunConfig;

const HOLDERS: &str = "Card: the plan needs 9 GiB in one piece, 1 GiB of 16 GiB are free\n  \
                       process 7 (other) holds 15 GiB";

fn taken() -> TrainError {
    let (found, hint) = (HOLDERS.to_owned(), "stop what holds the memory".to_owned());
    DeviceError::Memory { found, hint }.into()
}

/// Plans of a small model on a simulated GPU. A reserved machine is represented by its number of bytes.
struct World {
    setup: Setup,
    total: u64,
    /// Memory that this process could get.
    free: u64,
    /// Memory that the process holds beyond its plan.
    beyond: u64,
    lines: RefCell<Vec<String>>,
}

impl World {
    fn new(total: u64, free: u64, change: impl FnOnce(&mut RunConfig)) -> World {
        let mut config = RunConfig {
            model: "small".to_owned(),
            ..RunConfig::default()
        };
        config.train.effective_batch = Some(64);
        change(&mut config);
        let device = Device::on_cpu(Cpu::new(Some(1)));
        World {
            setup: Setup::without_data(&config, &device).unwrap(),
            total,
            free,
            beyond: 0,
            lines: RefCell::default(),
        }
    }

    fn plan(&self, budget_bytes: Option<u64>, more_bytes: u64) -> Result<Plan, TrainError> {
        let setup = &self.setup;
        let build = |shape: &StepShape| setup.write(shape);
        let request = Request {
            budget_bytes,
            ..self.setup.request.clone()
        };
        let target = CpuTarget::new(1).with_baseline(more_bytes);
        Ok(plan(&request, &build, &target)?)
    }

    fn reserve(&self, plan: Plan, budget: Option<u64>) -> Result<Reserved<u64>, TrainError> {
        let held = RefCell::new(0);
        let card = CardMemory {
            total_bytes: Some(self.total),
            available_bytes: &|| Some(self.free),
            held_bytes: &|| Some(*held.borrow()),
        };
        let mut make = |plan: &Plan| {
            let bytes = plan.step.process_bytes;
            if bytes > self.free {
                return Err(taken());
            }
            // A plan that includes the excess is not exceeded again.
            let known = bytes - plan.step.arena_bytes;
            *held.borrow_mut() = if known >= self.beyond {
                bytes
            } else {
                bytes + self.beyond
            };
            Ok(bytes)
        };
        let mut tell = |line: &str| self.lines.borrow_mut().push(line.to_owned());
        let mut again = |budget, more| self.plan(budget, more);
        reserve(plan, budget, &card, &mut make, &mut again, &mut tell)
    }

    fn lines(&self) -> String {
        self.lines.borrow().join("\n")
    }
}

/// Memory that is left free on a GPU.
const RESERVE: u64 = 256 << 20;

#[test]
fn a_plan_that_has_its_memory_is_reserved_without_a_word() {
    let world = World::new(u64::MAX, u64::MAX, |_| ());
    let plan = world.plan(None, 0).unwrap();
    let reserved = world.reserve(plan.clone(), Some(u64::MAX)).unwrap();
    assert_eq!(reserved.plan.chosen, plan.chosen);
    assert_eq!(reserved.budget_bytes, Some(u64::MAX));
    assert_eq!(world.lines(), "");
}

#[test]
fn what_others_took_is_planned_around() {
    let mut world = World::new(u64::MAX, 0, |_| ());
    let plan = world.plan(None, 0).unwrap();
    let needed = plan.step.process_bytes;
    world.free = RESERVE + needed / 2;
    for budget in [None, Some(needed)] {
        world.lines.borrow_mut().clear();
        let reserved = reserve_failing_once(&world, plan.clone(), budget).unwrap();
        assert_eq!(reserved.budget_bytes, Some(needed / 2));
        assert!(reserved.plan.step.process_bytes <= needed / 2);
        let lines = world.lines();
        assert!(lines.contains("process 7 (other) holds 15 GiB"), "{lines}");
        assert!(!lines.contains("hint:"), "{lines}");
        let said = format!(
            "Another process took memory: planned again for {} instead of {}: ",
            show_bytes(needed / 2),
            show_bytes(needed)
        );
        assert!(lines.contains(&said), "{lines}");
    }
}

/// The first plan finds its memory taken, whatever is free.
fn reserve_failing_once(
    world: &World,
    plan: Plan,
    budget: Option<u64>,
) -> Result<Reserved<u64>, TrainError> {
    let mut first = true;
    let card = CardMemory {
        total_bytes: Some(world.total),
        available_bytes: &|| Some(world.free),
        held_bytes: &|| None,
    };
    let mut make = |plan: &Plan| {
        if std::mem::take(&mut first) {
            Err(taken())
        } else {
            Ok(plan.step.process_bytes)
        }
    };
    let mut tell = |line: &str| world.lines.borrow_mut().push(line.to_owned());
    let mut again = |budget, more| world.plan(budget, more);
    reserve(plan, budget, &card, &mut make, &mut again, &mut tell)
}

#[test]
fn a_budget_that_the_card_never_had_is_not_blamed_on_others() {
    let mut world = World::new(0, 0, |_| ());
    let plan = world.plan(None, 0).unwrap();
    let needed = plan.step.process_bytes;
    (world.total, world.free) = (needed - 1, RESERVE + needed / 2);
    reserve_failing_once(&world, plan, Some(2 * needed)).unwrap();
    let lines = world.lines();
    assert!(lines.contains("That is more than there is: "), "{lines}");
}

#[test]
fn what_the_user_fixed_stays_and_may_not_fit() {
    let mut world = World::new(u64::MAX, 0, |config| {
        config.train.batch_size = Some(64);
        config.train.recompute = serde_json::from_str("\"none\"").unwrap();
    });
    let plan = world.plan(None, 0).unwrap();
    world.free = RESERVE + plan.step.process_bytes / 2;
    let refused = reserve_failing_once(&world, plan, None).err().unwrap();
    assert!(matches!(
        refused,
        TrainError::Device(DeviceError::Memory { .. })
    ));
    let text = refused.to_string();
    assert!(text.contains("process 7 (other) holds 15 GiB"), "{text}");
    assert!(text.contains("the smallest plan"), "{text}");
    assert!(text.ends_with("hint: stop what holds the memory"), "{text}");
    assert_eq!(world.lines(), "", "the error says it all");
}

#[test]
fn a_second_failure_is_final() {
    let world = World::new(u64::MAX, RESERVE, |_| ());
    let plan = world.plan(None, 0).unwrap();
    let card = CardMemory {
        total_bytes: Some(world.total),
        available_bytes: &|| Some(u64::MAX),
        held_bytes: &|| None,
    };
    let mut made = 0;
    let mut make = |_: &Plan| -> Result<(), TrainError> {
        made += 1;
        Err(taken())
    };
    let mut again = |budget, more| world.plan(budget, more);
    let refused = reserve(plan, None, &card, &mut make, &mut again, &mut |_| ()).err();
    assert!(matches!(
        refused,
        Some(TrainError::Device(DeviceError::Memory { .. }))
    ));
    assert_eq!(made, 2);
}

#[test]
fn more_than_planned_raises_the_forecast_within_the_budget() {
    let mut world = World::new(u64::MAX, u64::MAX, |_| ());
    let plan = world.plan(None, 0).unwrap();
    world.beyond = 1 << 40;
    let promised = plan.step.process_bytes;
    for budget in [None, Some(promised + world.beyond)] {
        let reserved = world.reserve(plan.clone(), budget).unwrap();
        assert_eq!(reserved.plan.step.process_bytes, promised + world.beyond);
        assert_eq!(reserved.plan.chosen.process_bytes, promised + world.beyond);
        assert_eq!(reserved.plan.chosen.choice, plan.chosen.choice);
    }
    assert_eq!(world.lines.borrow().len(), 2);
}

#[test]
fn more_than_the_budget_is_planned_again_with_it() {
    let mut world = World::new(u64::MAX, u64::MAX, |_| ());
    let plan = world.plan(None, 0).unwrap();
    let budget = plan.step.process_bytes;
    world.beyond = budget / 2;
    let reserved = world.reserve(plan.clone(), Some(budget)).unwrap();
    assert_ne!(reserved.plan.chosen.choice, plan.chosen.choice);
    assert!(reserved.plan.step.process_bytes <= budget);
    assert!(reserved.plan.step.process_bytes > world.beyond);
    let lines = world.lines();
    assert!(lines.starts_with("The process holds "), "{lines}");
    assert!(lines.contains(" instead of "), "{lines}");
    world.beyond = budget;
    let refused = world.reserve(plan, Some(budget)).err();
    assert!(matches!(
        refused,
        Some(TrainError::Plan(PlanError::DoesNotFit { .. }))
    ));
}
