//! The optimizer's state as tensors, for writing and reading checkpoints.

use std::borrow::Cow;
use std::io;

use holdall_device::DeviceError;
use holdall_graph::{DType, Parameter};
use holdall_models::folder::{ElementFormat, Elements, Values};

use super::{Step, Stored, place};
use crate::engine::optimizer::{Averaging, StatePart};

/// A tensor's elements, to be filled.
pub enum ElementsMut<'a> {
    F32(&'a mut [f32]),
    /// Bits of 16-bit brain floats.
    Bf16(&'a mut [u16]),
    U8(&'a mut [u8]),
}

impl<'a> Stored<'a> {
    /// Reads the elements in their memory format; a weight with an adapter is merged with it.
    pub fn elements(&self) -> Result<Elements<'a>, DeviceError> {
        let (machine, place) = (self.machine, &self.place);
        Ok(match Values::format(self) {
            ElementFormat::F32 => Elements::F32(self.read()?),
            ElementFormat::Bf16 => Elements::Bf16(machine.read(place)?),
            ElementFormat::F16 => unreachable!("no state is in F16"),
            ElementFormat::U8 => Elements::U8(machine.read(place)?),
        })
    }
}

impl Values for Stored<'_> {
    fn num_values(&self) -> usize {
        self.place.shape.num_elements()
    }

    fn values(&self) -> io::Result<Cow<'_, [f32]>> {
        self.read().map_err(io::Error::other)
    }

    fn format(&self) -> ElementFormat {
        format_of(self.place.dtype)
    }

    fn elements(&self) -> io::Result<Elements<'_>> {
        Stored::elements(self).map_err(io::Error::other)
    }
}

fn format_of(dtype: DType) -> ElementFormat {
    match dtype {
        DType::U8 => ElementFormat::U8,
        DType::Bf16 => ElementFormat::Bf16,
        DType::F32 => ElementFormat::F32,
        other => unreachable!("no state is in {other:?}"),
    }
}

impl Step {
    /// All tensors of the optimizer's state, to be read later, in the order of the graph's parameters. Averages that are
    /// recomputed for each evaluation are not part of the state.
    pub fn optimizer_state(&self) -> impl Iterator<Item = (&Parameter, StatePart, Stored<'_>)> {
        self.state_parts().map(|(parameter, part)| {
            let place = self.place(&part.endpoint(&parameter.name));
            (parameter, part, self.stored_at(place))
        })
    }

    fn state_parts(&self) -> impl Iterator<Item = (&Parameter, StatePart)> {
        let keeps_average = matches!(self.config.optimizer.averaging, Averaging::OverSteps { .. });
        let parts = move |part: &StatePart| keeps_average || *part != StatePart::Average;
        let trainable = self.parameters().iter().filter(|one| one.trainable);
        trainable
            .flat_map(move |parameter| {
                let parts = StatePart::ALL.into_iter().filter(parts);
                parts.map(move |part| (parameter, part))
            })
            .filter(|(parameter, part)| {
                let endpoint = part.endpoint(&parameter.name);
                self.plan.graph.endpoint(&endpoint).is_some()
            })
    }

    /// Fills every tensor of the optimizer's state: `fill` gets the name in a checkpoint, and the elements.
    pub fn set_optimizer_state<E>(
        &mut self,
        mut fill: impl FnMut(&str, ElementsMut<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let parts: Vec<(String, String)> = self
            .state_parts()
            .map(|(parameter, part)| {
                let name = &parameter.name;
                (part.endpoint(name), part.checkpoint_name(name))
            })
            .collect();
        for (endpoint, name) in parts {
            let place = place(&self.plan, &endpoint);
            let machine = &mut self.machine;
            match format_of(place.dtype) {
                ElementFormat::F32 => {
                    machine.write(&place, |values| fill(&name, ElementsMut::F32(values)))
                }
                ElementFormat::Bf16 => {
                    machine.write(&place, |values| fill(&name, ElementsMut::Bf16(values)))
                }
                ElementFormat::F16 => unreachable!("no state is in F16"),
                ElementFormat::U8 => {
                    machine.write(&place, |values| fill(&name, ElementsMut::U8(values)))
                }
            }?;
        }
        Ok(())
    }
}
