//! Reserves the memory of a plan, which may no longer be free.
//!
//! ```text
//! reserve -> less is free than planned        -> plan again for the free memory -> reserve
//! measure -> the process exceeds the budget   -> plan again with the excess     -> reserve
//! ```
//!
//! Each happens at most once, and changes only settings that the user left open.

use holdall_device::{Device, DeviceError};
use holdall_plan::{Candidate, Choice, Plan, PlanError, Request, StepShape, plan};

use crate::config::budget::{Memory, show_bytes};
use crate::engine::step::Step;
use crate::error::TrainError;
use crate::planning::setup::{Setup, hold_more};

/// A plan with its reserved memory.
pub struct Reserved<M = Step> {
    /// The reserved plan: the original one or its replacement.
    pub plan: Plan,
    /// Budget of that plan.
    pub budget_bytes: Option<u64>,
    /// The reserved machine.
    pub machine: M,
}

/// Memory figures of a device.
struct CardMemory<'a> {
    total_bytes: Option<u64>,
    /// Memory that this process holds or could get now.
    available_bytes: &'a dyn Fn() -> Option<u64>,
    /// Memory that this process holds now.
    held_bytes: &'a dyn Fn() -> Option<u64>,
}

/// Plans for a budget, given the bytes that the process holds beyond the forecast.
type PlanAgain<'a> = &'a mut dyn FnMut(Option<u64>, u64) -> Result<Plan, TrainError>;

/// Reserves the memory of a plan.
type Make<'a, M> = &'a mut dyn FnMut(&Plan) -> Result<M, TrainError>;

impl Setup {
    /// Reserves a plan's memory on a GPU; if it is not free, plans again and reserves that plan. `tell` receives the changes.
    pub fn reserve(
        &self,
        device: &Device,
        made: Plan,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Reserved, TrainError> {
        let card = CardMemory {
            total_bytes: device.total_bytes(),
            available_bytes: &|| device.available_bytes(),
            held_bytes: &|| device.held_bytes(),
        };
        let mut make = |plan: &Plan| {
            let batch_size = plan.chosen.choice.batch_size;
            Step::new(device, self.step.clone(), plan.step.clone(), batch_size)
        };
        let mut plan_again = |budget_bytes: Option<u64>, more_bytes: u64| {
            let build = |shape: &StepShape| self.write(shape);
            let target = device.target_with_more(self.step.arithmetic, 0, more_bytes)?;
            let request = Request {
                budget_bytes,
                ..self.request.clone()
            };
            Ok(plan(&request, &build, &*target)?)
        };
        let budget_bytes = self.budget_bytes;
        reserve(made, budget_bytes, &card, &mut make, &mut plan_again, tell)
    }
}

fn reserve<M>(
    plan: Plan,
    budget_bytes: Option<u64>,
    card: &CardMemory<'_>,
    make: Make<'_, M>,
    plan_again: PlanAgain<'_>,
    tell: &mut dyn FnMut(&str),
) -> Result<Reserved<M>, TrainError> {
    let reserved = match make(&plan) {
        Ok(machine) => Reserved {
            plan,
            budget_bytes,
            machine,
        },
        Err(TrainError::Device(DeviceError::Memory { found, hint })) => {
            let why = (&*found, &*hint);
            within_what_is_left((&plan, budget_bytes), why, card, make, plan_again, tell)?
        }
        Err(error) => return Err(error),
    };
    let Some(held) = (card.held_bytes)() else {
        return Ok(reserved);
    };
    let excess = held.saturating_sub(reserved.plan.step.process_bytes);
    match reserved.budget_bytes {
        _ if excess == 0 => Ok(reserved),
        Some(budget) if held > budget => {
            let Reserved {
                plan: old, machine, ..
            } = reserved;
            drop(machine);
            let plan = plan_again(Some(budget), excess)?;
            tell(&format!(
                "The process holds {} beside its plan: planned again: {}",
                show_bytes(excess),
                differences(&old.chosen, &plan.chosen)
            ));
            let machine = make(&plan)?;
            let budget_bytes = Some(budget);
            Ok(Reserved {
                plan,
                budget_bytes,
                machine,
            })
        }
        // Planning again would give the same plan with a higher forecast.
        _ => Ok(forecast_raised(reserved, excess, tell)),
    }
}

fn forecast_raised<M>(
    mut reserved: Reserved<M>,
    excess: u64,
    tell: &mut dyn FnMut(&str),
) -> Reserved<M> {
    hold_more(&mut reserved.plan, excess);
    let process_bytes = reserved.plan.step.process_bytes;
    tell(&format!(
        "The process holds {} more than planned: {} now",
        show_bytes(excess),
        show_bytes(process_bytes)
    ));
    reserved
}

/// Plans again for the memory that is free now. `who` names the processes that hold the rest, `hint` is advice.
fn within_what_is_left<M>(
    (old, old_budget): (&Plan, Option<u64>),
    (who, hint): (&str, &str),
    card: &CardMemory<'_>,
    make: Make<'_, M>,
    plan_again: PlanAgain<'_>,
    tell: &mut dyn FnMut(&str),
) -> Result<Reserved<M>, TrainError> {
    let no_memory = |found: String| DeviceError::Memory {
        found,
        hint: hint.to_owned(),
    };
    let Some(available) = (card.available_bytes)() else {
        return Err(no_memory(who.to_owned()).into());
    };
    let left = Memory::Auto.resolve(card.total_bytes.unwrap_or(u64::MAX), available);
    let budget = old_budget.map_or(left, |budget| budget.min(left));
    let plan = plan_again(Some(budget), 0).map_err(|error| match error {
        TrainError::Plan(PlanError::DoesNotFit { smallest_bytes, .. }) => {
            TrainError::from(no_memory(format!(
                "{who}\n  {} could be had: the smallest plan of what was left open needs {}",
                show_bytes(budget),
                show_bytes(smallest_bytes)
            )))
        }
        error => error,
    })?;
    let was = old_budget.unwrap_or(old.step.process_bytes);
    let too_much = card
        .total_bytes
        .is_some_and(|total| old.step.process_bytes > total);
    tell(who);
    tell(&format!(
        "{}: planned again for {} instead of {}: {}",
        if too_much {
            "That is more than there is"
        } else {
            "Another process took memory"
        },
        show_bytes(budget),
        show_bytes(was),
        differences(&old.chosen, &plan.chosen)
    ));
    let machine = make(&plan)?;
    Ok(Reserved {
        plan,
        budget_bytes: Some(budget),
        machine,
    })
}

/// For example `batch 64 x 2 instead of 128 x 1, recompute blocks instead of cheap`.
fn differences(old: &Candidate, new: &Candidate) -> String {
    let (old, new) = (&old.choice, &new.choice);
    let split = |of: &Choice| format!("{} x {}", of.batch_size, of.gradient_accumulation);
    let mut words = Vec::new();
    for (name, old, new) in [
        ("batch", split(old), split(new)),
        ("recompute", old.recompute.label(), new.recompute.label()),
        (
            "kept micro-batches",
            old.kept_micro_batches.to_string(),
            new.kept_micro_batches.to_string(),
        ),
        (
            "weight copies",
            old.weight_copies.name().to_owned(),
            new.weight_copies.name().to_owned(),
        ),
        (
            "state in host memory",
            old.host_state.name().to_owned(),
            new.host_state.name().to_owned(),
        ),
    ] {
        if old != new {
            words.push(format!("{name} {new} instead of {old}"));
        }
    }
    if words.is_empty() {
        "the same plan".to_owned()
    } else {
        words.join(", ")
    }
}

#[cfg(test)]
mod tests;
