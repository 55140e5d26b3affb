//! Which plan is chosen.

use holdall_graph::{DType, MemorySpace};
use holdall_plan::{
    HostState, PlanError, Recompute, Request, Stage, StepShape, Variant, contenders, knee, plan,
    plan_of, search, variants_that_fit,
};
use proptest::prelude::*;

use crate::toy::{Toy, ToyDevice, example, toys};

const DEVICE: ToyDevice = ToyDevice {
    has_lanes: false,
    has_landing: false,
};

fn smallest_bytes(request: &Request, toy: &Toy) -> u64 {
    let nothing = Request {
        budget_bytes: Some(0),
        ..request.clone()
    };
    match search(&nothing, &|shape: &StepShape| toy.build(shape), &DEVICE) {
        Err(PlanError::DoesNotFit { smallest_bytes, .. }) => smallest_bytes,
        other => panic!("nothing fits into nothing, found {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_larger_budget_never_has_a_slower_plan(
        toy in toys(),
        effective_batch in 1..9usize,
        host_bytes in prop::option::of(prop::sample::select(vec![200, u64::MAX])),
    ) {
        let build = |shape: &StepShape| toy.build(shape);
        let request = Request {
            effective_batch: Some(effective_batch),
            host_bytes,
            precision: "f32",
            ..Request::default()
        };
        let smallest = smallest_bytes(&request, &toy);
        let largest = search(&request, &build, &DEVICE).unwrap().process_bytes.max(smallest);
        let mut last = f64::INFINITY;
        for part in 0..=8 {
            let budget_bytes = smallest + (largest - smallest) * part / 8;
            let request = Request { budget_bytes: Some(budget_bytes), ..request.clone() };
            let chosen = search(&request, &build, &DEVICE).unwrap();
            prop_assert!(chosen.process_bytes <= budget_bytes);
            prop_assert!(chosen.host_bytes <= host_bytes.unwrap_or(0));
            prop_assert!(chosen.step_ms <= last, "{} after {}", chosen.step_ms, last);
            last = chosen.step_ms;
        }
        // A byte less than the smallest is refused.
        let less = Request { budget_bytes: Some(smallest - 1), ..request };
        let refused = matches!(search(&less, &build, &DEVICE), Err(PlanError::DoesNotFit { .. }));
        prop_assert!(refused);
    }

    #[test]
    fn a_curve_goes_down_and_every_point_of_it_is_what_its_memory_buys(
        toy in toys(),
        effective_batch in 1..9usize,
        share in 0..9u64,
    ) {
        let build = |shape: &StepShape| toy.build(shape);
        let open = Request { effective_batch: Some(effective_batch), precision: "f32", ..Request::default() };
        let smallest = smallest_bytes(&open, &toy);
        let largest = search(&open, &build, &DEVICE).unwrap().process_bytes.max(smallest);
        let budget_bytes = smallest + (largest - smallest) * share / 8;
        let request = Request { budget_bytes: Some(budget_bytes), ..open.clone() };
        let plan = plan(&request, &build, &DEVICE).unwrap();
        let curve = &plan.curve;
        prop_assert!(curve.contains(&plan.chosen));
        for pair in curve.windows(2) {
            prop_assert!(pair[0].process_bytes < pair[1].process_bytes);
            prop_assert!(pair[0].step_ms > pair[1].step_ms);
        }
        for point in curve {
            let request = Request { budget_bytes: Some(point.process_bytes), ..open.clone() };
            let found = search(&request, &build, &DEVICE).unwrap();
            // Exact bytes: that budget runs it, or something faster whose bound is not in the curve's steps.
            prop_assert!(found.step_ms <= point.step_ms);
            let fits = point.process_bytes <= budget_bytes;
            prop_assert!(!fits || point.step_ms >= plan.chosen.step_ms);
        }
        prop_assert!(knee(curve).is_none_or(|index| index < curve.len()));
    }

    #[test]
    fn numbers_of_the_user_are_never_overridden(
        toy in toys(),
        effective_batch in prop::option::of(1..9usize),
        batch_size in prop::option::of(1..5usize),
        gradient_accumulation in prop::option::of(1..5usize),
        recompute in prop::option::of(prop::sample::select(vec![Recompute::None, Recompute::Cheap, Recompute::Blocks])),
    ) {
        // Without an effective batch the default one is large; that is planned for elsewhere.
        prop_assume!(effective_batch.is_some() || (batch_size.is_some() && gradient_accumulation.is_some()));
        let build = |shape: &StepShape| toy.build(shape);
        let request = Request {
            effective_batch,
            batch_size,
            gradient_accumulation,
            recompute,
            precision: "f32",
            ..Request::default()
        };
        match plan(&request, &build, &DEVICE) {
            Ok(plan) => {
                let choice = plan.chosen.choice;
                prop_assert!(effective_batch.is_none_or(|said| said == plan.effective_batch));
                prop_assert!(batch_size.is_none_or(|said| said == choice.batch_size));
                if let Some(said) = gradient_accumulation {
                    // As many micro-batches as the effective batch fills.
                    let needed = plan.effective_batch.div_ceil(choice.batch_size);
                    prop_assert!(choice.gradient_accumulation == said || choice.gradient_accumulation == needed);
                    prop_assert!(choice.gradient_accumulation <= said);
                }
                let label = choice.recompute.label();
                prop_assert!(match recompute {
                    None => true,
                    Some(Recompute::None) => label == "none",
                    Some(Recompute::Cheap) => label == "cheap" || choice.recompute.num_blocks == 0,
                    Some(Recompute::Blocks) => label.starts_with("blocks") || choice.recompute.num_blocks == 0,
                }, "{}", label);
                // Every sample has a place, and no micro-batch is empty.
                let places = choice.batch_size * choice.gradient_accumulation;
                prop_assert!(places >= plan.effective_batch && places - plan.effective_batch < choice.batch_size);
                prop_assert_eq!(plan.step.accumulation, choice.gradient_accumulation);
                prop_assert_eq!(plan.step.kept, choice.kept_micro_batches);
                prop_assert_eq!(plan.step.arena_bytes, plan.chosen.arena_bytes);
                prop_assert_eq!(plan.step.process_bytes, plan.chosen.process_bytes);
            }
            Err(PlanError::Contradiction(text)) => {
                prop_assert!(text.contains("\nhint: "), "{}", text);
                let contradicts = match (effective_batch, batch_size, gradient_accumulation) {
                    (Some(effective), Some(batch), Some(accumulation)) => {
                        batch > effective || effective.div_ceil(batch) != accumulation
                    }
                    (Some(effective), Some(batch), None) => batch > effective,
                    (Some(effective), None, Some(accumulation)) => accumulation > effective,
                    _ => false,
                };
                prop_assert!(contradicts, "{}", text);
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}

#[test]
fn the_knee_is_where_a_curve_bends() {
    let toy = example();
    let request = Request {
        effective_batch: Some(8),
        precision: "f32",
        ..Request::default()
    };
    let plan = plan(&request, &|shape: &StepShape| toy.build(shape), &DEVICE).unwrap();
    let at = |points: &[(u64, f64)]| {
        let of = |&(process_bytes, step_ms): &(u64, f64)| holdall_plan::Candidate {
            process_bytes,
            step_ms,
            ..plan.chosen.clone()
        };
        knee(&points.iter().map(of).collect::<Vec<_>>())
    };
    assert_eq!(at(&[(4, 90.0), (5, 50.0), (8, 40.0), (32, 34.0)]), Some(1));
    // A straight line by factors, and what is no curve.
    assert_eq!(at(&[(4, 30.0), (8, 20.0), (16, 10.0)]), None);
    assert_eq!(at(&[(4, 30.0), (8, 20.0)]), None);
    assert_eq!(at(&[(4, 30.0)]), None);
    assert_eq!(at(&[]), None);
}

#[test]
fn variants_that_fit_are_offered_with_their_bytes() {
    let toy = example();
    // Frozen parameters have neither gradients nor moments.
    let frozen = Toy {
        frozen: 1,
        ..toy.clone()
    };
    let open = Request {
        effective_batch: Some(8),
        precision: "f32",
        ..Request::default()
    };
    let request = Request {
        budget_bytes: Some(smallest_bytes(&open, &toy) - 1),
        ..open
    };
    let build = |shape: &StepShape| frozen.build(shape);
    let same = |shape: &StepShape| toy.build(shape);
    let variants = [
        Variant {
            change: "--set train.freeze=all",
            note: "other numbers: nothing is trained",
            build: &build,
        },
        Variant {
            change: "--set train.freeze=none",
            note: "the same numbers",
            build: &same,
        },
    ];
    let found = variants_that_fit(&request, &variants, &DEVICE);
    let [change] = found.as_slice() else {
        panic!("one of the two fits, found {found:?}");
    };
    let words = "--set train.freeze=all (other numbers: nothing is trained)";
    assert_eq!(change.change, words);
    let budget = request.budget_bytes.unwrap();
    assert!(change.process_bytes <= budget && change.step_ms > 0.0);
}

#[test]
fn a_choice_is_found_again_and_changes_that_are_offered_fit() {
    let toy = example();
    let build = |shape: &StepShape| toy.build(shape);
    let request = Request {
        effective_batch: Some(8),
        precision: "f32",
        ..Request::default()
    };
    let plans = contenders(&request, &build, &DEVICE, 4).unwrap();
    assert!(plans.len() > 1);
    assert!(
        plans
            .windows(2)
            .all(|two| two[0].chosen.step_ms <= two[1].chosen.step_ms)
    );
    for plan in &plans {
        let again = plan_of(&plan.chosen.choice, &request, &build, &DEVICE)
            .unwrap()
            .unwrap();
        assert_eq!(again.chosen, plan.chosen);
        assert_eq!(again.step.programs, plan.step.programs);
    }
    let tight = Request {
        budget_bytes: Some(smallest_bytes(&request, &toy)),
        ..request.clone()
    };
    let fastest = plans[0].chosen.choice;
    assert!(
        plan_of(&fastest, &tight, &build, &DEVICE)
            .unwrap()
            .is_none()
    );
    // A split that does not fit: what is offered instead does.
    let fixed = Request {
        batch_size: Some(8),
        recompute: Some(Recompute::None),
        ..tight.clone()
    };
    let Err(PlanError::DoesNotFit {
        changes,
        smallest_bytes,
        budget_bytes,
        ..
    }) = plan(&fixed, &build, &DEVICE)
    else {
        panic!("eight samples at once fit where one did");
    };
    assert!(smallest_bytes > budget_bytes && !changes.is_empty());
    for change in changes {
        let fits = change.process_bytes <= budget_bytes;
        assert!(fits || change.change.starts_with("--memory"), "{change:?}");
    }
}

/// State moves to the host where it must, not before, and never more than there is room for; what stays on the device is shown beside it.
#[test]
fn state_lies_on_the_host_where_it_would_not_fit_otherwise() {
    let toy = Toy {
        compute: DType::Bf16,
        ..example()
    };
    let build = |shape: &StepShape| toy.build(shape);
    let on_device = Request {
        effective_batch: Some(8),
        precision: "bf16",
        ..Request::default()
    };
    let on_host = Request {
        host_bytes: Some(u64::MAX),
        ..on_device.clone()
    };
    let [least_on_device, least_on_host] =
        [&on_device, &on_host].map(|request| smallest_bytes(request, &toy));
    assert!(least_on_host < least_on_device);
    // With room for all of it, nothing is fetched and sent back.
    let roomy = plan(&on_host, &build, &DEVICE).unwrap();
    assert!(!roomy.chosen.choice.host_state.costs_time());
    let tight = Request {
        budget_bytes: Some(least_on_host),
        ..on_host.clone()
    };
    let plan = plan(&tight, &build, &DEVICE).unwrap();
    let chosen = &plan.chosen;
    assert_eq!(chosen.choice.host_state, HostState::MomentsAndWeights);
    assert_eq!(chosen.host_bytes, plan.step.host_bytes);
    assert!(chosen.host_bytes > 0);
    let kept_on_device = plan.alternatives.iter().find(|other| {
        other.choice.host_state == HostState::Nothing
            && other.choice.recompute == chosen.choice.recompute
    });
    let kept_on_device = kept_on_device.expect("the same plan with its state on the device");
    assert!(kept_on_device.step_ms < chosen.step_ms);
    assert!(kept_on_device.process_bytes > chosen.process_bytes);
    // Weights that only the update reads are not in the arena; the copies that products read are.
    let weights = chosen.breakdown.weights;
    assert!(weights > 0 && weights < kept_on_device.breakdown.weights);
    assert_eq!(chosen.breakdown.optimizer, 0);
    for program in &plan.step.programs {
        let touches_host = program.instructions.iter().any(|instruction| {
            let outputs = instruction.outputs.iter().flatten();
            let mut places = instruction
                .inputs
                .iter()
                .chain(outputs.map(|(place, _)| place));
            places.any(|place| place.space == MemorySpace::PinnedHost)
        });
        let may = matches!(program.stage, Stage::Update | Stage::Refresh);
        assert_eq!(touches_host, may, "{}", program.name);
    }
    // A little room: a little state.
    let little = Request {
        budget_bytes: None,
        host_bytes: Some(chosen.host_bytes / 3),
        ..tight
    };
    let refused = smallest_bytes(&little, &toy);
    assert!(refused > least_on_host && refused < least_on_device);
}
