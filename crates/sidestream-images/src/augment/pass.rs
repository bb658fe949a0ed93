//! Divides the acts on a picture into passes, each of which is one launch.
//!
//! A pass consists of one warp, colour steps, one filter over neighbours, more colour steps, and at the end erasing,
//! mixing and the units of the result. An act is added to the current pass if it fits after the acts that the pass
//! already has. Geometric acts fit only at the beginning of a pass, where they are composed into one map that is
//! sampled once. A pass has at most one step that needs statistics of the picture. Without fusion each act is a pass.

use super::draw::{Act, Acts};
use super::geometry::Matrix;
use super::operator::Interpolation;
use super::record::{
    BILINEAR, CANVASES, Canvas, ERASED, Erased, FOOTPRINT, HARD, NEAREST, Record, SOFT, STEPS,
    TWICE,
};
use crate::{Region, Size};

/// A pass over one picture.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    /// Everything that does not depend on where the picture is in memory.
    pub record: Record,
    /// The part of the input that may be read, in its pixels. Places of [`Record::map`] are relative to its corner.
    pub window: Region,
    map: Matrix,
    pub size: Size,
    /// Which kinds of acts the pass has so far.
    has_geometry: bool,
    is_past_geometry: bool,
    has_neighbours: bool,
    all_nearest: bool,
    antialias: bool,
    acts: usize,
}

/// Returns the passes for a picture of this size, at least one.
pub(crate) fn passes(acts: &Acts, full: Size, fuse: bool) -> Vec<Pass> {
    let mut done = Vec::new();
    let mut pass = Pass::new(full);
    for act in &acts.acts {
        // Erasing comes last in any case, so it needs no pass of its own even without fusion.
        let is_last = matches!(act, Act::Erase { .. });
        if pass.acts > 0 && (!fuse && !is_last || !pass.takes(act)) {
            let size = pass.size;
            done.push(pass.finished(fuse));
            pass = Pass::new(size);
        }
        pass.take(act);
    }
    done.push(pass.finished(fuse));
    done
}

impl Pass {
    fn new(size: Size) -> Pass {
        Pass {
            record: Record {
                share: 1.0,
                scale: [1.0; 3],
                measured: STEPS as u32,
                ..Record::default()
            },
            window: Region::whole(size),
            map: Matrix::IDENTITY,
            size,
            has_geometry: false,
            is_past_geometry: false,
            has_neighbours: false,
            all_nearest: true,
            antialias: false,
            acts: 0,
        }
    }

    fn takes(&self, act: &Act) -> bool {
        let record = &self.record;
        match act {
            Act::Crop { .. } | Act::Warp { .. } => {
                !self.is_past_geometry
                    && record.erased == 0
                    && (record.canvases as usize) < CANVASES
            }
            Act::Resize { .. } | Act::Flip { .. } => !self.is_past_geometry && record.erased == 0,
            Act::Colour(step) => {
                let has_room = (record.steps as usize) < STEPS && record.erased == 0;
                let is_measured = record.measured < STEPS as u32;
                has_room && !(step.needs_statistics() && is_measured)
            }
            Act::Neighbours(_) => !self.has_neighbours && record.erased == 0,
            Act::Erase { .. } => (record.erased as usize) < ERASED,
        }
    }

    fn take(&mut self, act: &Act) {
        self.acts += 1;
        match act {
            &Act::Crop {
                left,
                top,
                size,
                fill,
            } => self.crop([left, top], size, fill),
            &Act::Resize { size, antialias } => {
                let ratio = |from: u32, to: u32| f64::from(from) / f64::from(to);
                let (x, y) = (
                    ratio(self.size.width, size.width),
                    ratio(self.size.height, size.height),
                );
                self.compose(&Matrix::scaling(x, y));
                self.all_nearest = false;
                self.antialias |= antialias;
                self.size = size;
            }
            Act::Flip { horizontal } => {
                let (w, h) = (f64::from(self.size.width), f64::from(self.size.height));
                let map = match horizontal {
                    true => Matrix::affine([-1.0, 0.0, w, 0.0, 1.0, 0.0]),
                    false => Matrix::affine([1.0, 0.0, 0.0, 0.0, -1.0, h]),
                };
                self.compose(&map);
            }
            Act::Warp {
                map,
                size,
                interpolation,
                fill,
            } => {
                let before = self.size;
                let is_first = !self.has_geometry;
                self.compose(map);
                let edge = match (interpolation, fill) {
                    (Interpolation::Nearest, _) => HARD,
                    (Interpolation::Bilinear, Some(_)) if is_first => TWICE,
                    _ => SOFT,
                };
                self.canvas(map, before, fill.unwrap_or_default(), edge);
                self.all_nearest &= *interpolation == Interpolation::Nearest;
                self.size = *size;
            }
            Act::Colour(step) => {
                self.is_past_geometry = true;
                let at = self.record.steps as usize;
                if step.needs_statistics() {
                    self.record.measured = at as u32;
                }
                self.record.step[at] = *step;
                self.record.steps += 1;
                if !self.has_neighbours {
                    self.record.steps_before += 1;
                }
            }
            Act::Neighbours(filter) => {
                self.is_past_geometry = true;
                self.has_neighbours = true;
                self.record.radius = filter.radius;
                self.record.weights = filter.weights;
                self.record.own = filter.own;
                self.record.around = filter.around;
                self.record.keeps_edge = filter.keeps_edge.into();
            }
            &Act::Erase {
                left,
                top,
                size,
                value,
            } => {
                self.record.erase[self.record.erased as usize] = Erased {
                    within: [left, top, left + size.width, top + size.height],
                    value,
                };
                self.record.erased += 1;
            }
        }
    }

    fn crop(&mut self, [left, top]: [i64; 2], size: Size, fill: [f32; 3]) {
        let whole = self.size;
        let (right, bottom) = (left + i64::from(size.width), top + i64::from(size.height));
        let is_within = left >= 0
            && top >= 0
            && right <= i64::from(whole.width)
            && bottom <= i64::from(whole.height);
        if is_within && !self.has_geometry && self.map == Matrix::IDENTITY {
            // A later filter does not read beyond the edge of the crop.
            self.window.left += left as u32;
            self.window.top += top as u32;
            self.window.size = size;
        } else {
            let moved = Matrix::translation(left as f64, top as f64);
            self.compose(&moved);
            if !is_within {
                self.canvas(&moved, whole, fill, HARD);
            }
        }
        self.size = size;
    }

    fn compose(&mut self, map: &Matrix) {
        self.has_geometry = true;
        self.map = self.map.after(map);
        for canvas in &mut self.record.canvas[..self.record.canvases as usize] {
            let earlier = Matrix(canvas.map.map(f64::from));
            canvas.map = earlier.after(map).0.map(|value| value as f32);
        }
    }

    fn canvas(&mut self, map: &Matrix, size: Size, fill: [f32; 3], edge: u32) {
        self.record.canvas[self.record.canvases as usize] = Canvas {
            map: map.0.map(|value| value as f32),
            width: size.width as f32,
            height: size.height as f32,
            fill,
            edge,
        };
        self.record.canvases += 1;
    }

    fn finished(mut self, fuse: bool) -> Pass {
        let shrinks = self.antialias && self.shrinks();
        let record = &mut self.record;
        record.width = self.size.width;
        record.height = self.size.height;
        record.levels = (!fuse).into();
        record.map = self.map.0.map(|value| value as f32);
        record.filter = BILINEAR;
        if self.all_nearest || self.map.keeps_pixels() {
            record.filter = NEAREST;
        } else if fuse {
            // A filtered picture has no hard edges, unless its pixels are pixels of the canvas.
            for canvas in &mut record.canvas[..record.canvases as usize] {
                let map = Matrix(canvas.map.map(f64::from));
                if canvas.edge == HARD && !map.keeps_pixels()
                    || canvas.edge == TWICE && self.acts > 1
                {
                    canvas.edge = SOFT;
                }
            }
        }
        if record.filter == BILINEAR && shrinks {
            record.filter = FOOTPRINT;
            let [a, b] = self.map.jacobian(0.0, 0.0);
            record.footprint = footprint(a, b).map(|value| value as f32);
        }
        self
    }

    /// Returns whether the map shrinks the picture: a pixel of the result covers more than a pixel's length
    /// somewhere.
    fn shrinks(&self) -> bool {
        let (w, h) = (f64::from(self.size.width), f64::from(self.size.height));
        let shrinks = |x, y| {
            let columns = self.map.jacobian(x, y);
            columns.iter().any(|[x, y]| x.hypot(*y) > 1.0 + 1e-9)
        };
        if self.map.is_affine() {
            shrinks(0.0, 0.0)
        } else {
            [(0.0, 0.0), (w, 0.0), (0.0, h), (w, h)]
                .into_iter()
                .any(|(x, y)| shrinks(x, y))
        }
    }

    /// Returns the part of the input that the result depends on.
    pub(crate) fn region(&self) -> Region {
        let Size { width, height } = self.window.size;
        let (w, h) = (f64::from(self.size.width), f64::from(self.size.height));
        let corners = [(0.0, 0.0), (w, 0.0), (0.0, h), (w, h)];
        let mut places = Vec::with_capacity(4);
        for (x, y) in corners {
            match self.map.apply(x, y) {
                Some(place) if self.map.is_affine() || self.record.filter != FOOTPRINT => {
                    places.push(place)
                }
                // The map has a horizon, or its footprints can have any size.
                _ => return self.window,
            }
        }
        let reach = match self.record.filter {
            FOOTPRINT => [self.record.footprint[4], self.record.footprint[5]].map(f64::from),
            _ => [1.0; 2],
        };
        let along = |axis: usize, length: u32| {
            let all = || places.iter().map(|place| place[axis]);
            let low = all().fold(f64::MAX, f64::min) - reach[axis] - 1.0;
            let high = all().fold(f64::MIN, f64::max) + reach[axis] + 1.0;
            let last = f64::from(length - 1);
            let first = low.floor().clamp(0.0, last) as u32;
            (
                first,
                high.ceil().clamp(f64::from(first + 1), f64::from(length)) as u32,
            )
        };
        let ((left, right), (top, bottom)) = (along(0, width), along(1, height));
        Region {
            left: self.window.left + left,
            top: self.window.top + top,
            size: Size::new(right - left, bottom - top),
        }
    }
}

/// For a footprint that is spanned by two steps of the result, returns the rows that map a pixel to its place in the
/// footprint, whose edge is at 1, and how far the footprint reaches to the sides and up and down.
///
/// Its weight is a triangle along each step, as wide as torchvision's for `antialias=True`: twice the step, and at
/// least two pixels.
pub(crate) fn footprint(a: [f64; 2], b: [f64; 2]) -> [f64; 6] {
    let det = a[0] * b[1] - a[1] * b[0];
    let wide = |[x, y]: [f64; 2]| {
        // Computed as in the kernel, to the last bit.
        let length = (x * x + y * y).sqrt();
        length.max(1.0) / length
    };
    let (wa, wb) = (wide(a), wide(b));
    [
        b[1] / det / wa,
        -b[0] / det / wa,
        -a[1] / det / wb,
        a[0] / det / wb,
        a[0].abs() * wa + b[0].abs() * wb,
        a[1].abs() * wa + b[1].abs() * wb,
    ]
}
