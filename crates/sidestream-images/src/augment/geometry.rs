//! Maps between pictures, as matrices in double precision.
//!
//! A map takes a place of the result to a place of its source. Places are continuous: a pixel is a square of side 1,
//! the corner of the first pixel is at 0 and its centre at 0.5.

use crate::Size;

/// A projective map of the plane, by rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Matrix(pub [f64; 9]);

impl Matrix {
    pub(crate) const IDENTITY: Matrix = Matrix([1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);

    /// Returns the affine map with the rows `a b c` and `d e f`.
    pub(crate) fn affine([a, b, c, d, e, f]: [f64; 6]) -> Matrix {
        Matrix([a, b, c, d, e, f, 0.0, 0.0, 1.0])
    }

    pub(crate) fn translation(x: f64, y: f64) -> Matrix {
        Matrix::affine([1.0, 0.0, x, 0.0, 1.0, y])
    }

    pub(crate) fn scaling(x: f64, y: f64) -> Matrix {
        Matrix::affine([x, 0.0, 0.0, 0.0, y, 0.0])
    }

    /// Returns the map that applies `first` to a place and then `self`.
    pub(crate) fn after(&self, first: &Matrix) -> Matrix {
        let (a, b) = (&self.0, &first.0);
        let mut product = Matrix(std::array::from_fn(|at| {
            (0..3).map(|k| a[at / 3 * 3 + k] * b[k * 3 + at % 3]).sum()
        }));
        if self.is_affine() && first.is_affine() {
            product.0[8] = 1.0;
        }
        product
    }

    /// Returns the source of a place, or none if it is behind the viewer.
    pub(crate) fn apply(&self, x: f64, y: f64) -> Option<[f64; 2]> {
        let m = &self.0;
        let w = m[6] * x + m[7] * y + m[8];
        (w > 0.0).then(|| {
            [
                (m[0] * x + m[1] * y + m[2]) / w,
                (m[3] * x + m[4] * y + m[5]) / w,
            ]
        })
    }

    pub(crate) fn is_affine(&self) -> bool {
        self.0[6..] == [0.0, 0.0, 1.0]
    }

    /// Returns whether each pixel of the result is a pixel of the source: at most moved or mirrored.
    pub(crate) fn keeps_pixels(&self) -> bool {
        let m = &self.0;
        self.is_affine()
            && [m[1], m[3]] == [0.0; 2]
            && [m[0], m[4]].iter().all(|scale| scale.abs() == 1.0)
            && [m[2], m[5]].iter().all(|offset| offset.fract() == 0.0)
    }

    /// Returns the derivative of the map at this place: the changes of the source for a step to the right and a step
    /// down.
    pub(crate) fn jacobian(&self, x: f64, y: f64) -> [[f64; 2]; 2] {
        let m = &self.0;
        let w = m[6] * x + m[7] * y + m[8];
        let [px, py] = [
            (m[0] * x + m[1] * y + m[2]) / w,
            (m[3] * x + m[4] * y + m[5]) / w,
        ];
        [
            [(m[0] - m[6] * px) / w, (m[3] - m[6] * py) / w],
            [(m[1] - m[7] * px) / w, (m[4] - m[7] * py) / w],
        ]
    }
}

/// Returns the inverse of a rotation, scaling and shear about a centre, followed by a translation, composed as in
/// torchvision: `scale * rotation * shear y * shear x`. The centre is relative to the middle of the picture.
pub(crate) fn inverse_affine(
    center: [f64; 2],
    angle_degrees: f64,
    translate: [f64; 2],
    scale: f64,
    shear_degrees: [f64; 2],
) -> [f64; 6] {
    let rotation = angle_degrees.to_radians();
    let [sx, sy] = shear_degrees.map(f64::to_radians);
    let a = (rotation - sy).cos() / sy.cos();
    let b = -(a * sx.tan() + rotation.sin());
    let c = (rotation - sy).sin() / sy.cos();
    let d = rotation.cos() - c * sx.tan();
    let mut inverse = [d / scale, -b / scale, 0.0, -c / scale, a / scale, 0.0];
    let moved = [center[0] + translate[0], center[1] + translate[1]];
    inverse[2] = center[0] - inverse[0] * moved[0] - inverse[1] * moved[1];
    inverse[5] = center[1] - inverse[3] * moved[0] - inverse[4] * moved[1];
    inverse
}

/// Returns the map from coordinates in `from` to those in `to`. In `inverse`, both are relative to the middle of their
/// picture.
pub(crate) fn about_middles(inverse: [f64; 6], from: Size, to: Size) -> Matrix {
    let half = |size: Size| (f64::from(size.width) / 2.0, f64::from(size.height) / 2.0);
    let ((fx, fy), (tx, ty)) = (half(from), half(to));
    Matrix::translation(tx, ty)
        .after(&Matrix::affine(inverse))
        .after(&Matrix::translation(-fx, -fy))
}

/// Returns the size of a rotated picture that is shown whole, rounded as in torchvision.
pub(crate) fn expanded(inverse: [f64; 6], size: Size) -> Size {
    let (w, h) = (f64::from(size.width) / 2.0, f64::from(size.height) / 2.0);
    let [a, b, c, d, e, f] = inverse;
    let corners = [(-w, -h), (w, -h), (w, h), (-w, h)];
    let length = |along: &dyn Fn((f64, f64)) -> f64| {
        let all = corners.map(along);
        let most = all.iter().copied().fold(f64::MIN, f64::max);
        let least = all.iter().copied().fold(f64::MAX, f64::min);
        (most.ceil() - least.floor()) as u32
    };
    Size::new(
        length(&|(x, y)| a * x + b * y + c + w),
        length(&|(x, y)| d * x + e * y + f + h),
    )
}

/// Returns the map that takes each of four places to its partner; none if three of them are on a line.
pub(crate) fn perspective(from: [[f64; 2]; 4], to: [[f64; 2]; 4]) -> Option<Matrix> {
    let mut rows = [[0.0; 9]; 8];
    for (at, ([x, y], [u, v])) in from.into_iter().zip(to).enumerate() {
        rows[2 * at] = [x, y, 1.0, 0.0, 0.0, 0.0, -u * x, -u * y, u];
        rows[2 * at + 1] = [0.0, 0.0, 0.0, x, y, 1.0, -v * x, -v * y, v];
    }
    // Gauss-Jordan elimination, with the largest pivot of each column.
    for column in 0..8 {
        let size = |row: &usize| rows[*row][column].abs();
        let pivot = (column..8).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        rows.swap(column, pivot);
        let head = rows[column][column];
        if head.abs() < 1e-9 {
            return None;
        }
        let row = rows[column].map(|value| value / head);
        rows[column] = row;
        for (other, values) in rows.iter_mut().enumerate() {
            if other != column {
                let factor = values[column];
                for (value, own) in values.iter_mut().zip(row) {
                    *value -= factor * own;
                }
            }
        }
    }
    let solved = rows.map(|row| row[8]);
    let [a, b, c, d, e, f, g, h] = solved;
    Some(Matrix([a, b, c, d, e, f, g, h, 1.0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_perspective_leads_corners_to_corners() {
        let from = [[1.0, 2.0], [30.0, 4.0], [28.0, 31.0], [3.0, 29.0]];
        let to = [[0.0, 0.0], [31.0, 0.0], [31.0, 31.0], [0.0, 31.0]];
        let map = perspective(from, to).unwrap();
        for ([x, y], expected) in from.into_iter().zip(to) {
            let [u, v] = map.apply(x, y).unwrap();
            assert!((u - expected[0]).abs() < 1e-9 && (v - expected[1]).abs() < 1e-9);
        }
        assert_eq!(perspective([[0.0, 0.0]; 4], to), None);
    }

    #[test]
    fn the_jacobian_is_the_difference_of_near_places() {
        let map = Matrix([1.5, 0.2, 3.0, -0.1, 0.8, 2.0, 0.001, 0.002, 1.0]);
        let (x, y, step) = (20.0, 10.0, 1e-5);
        let [px, py] = map.apply(x, y).unwrap();
        for (column, (dx, dy)) in map
            .jacobian(x, y)
            .into_iter()
            .zip([(step, 0.0), (0.0, step)])
        {
            let [qx, qy] = map.apply(x + dx, y + dy).unwrap();
            assert!((column[0] - (qx - px) / step).abs() < 1e-4);
            assert!((column[1] - (qy - py) / step).abs() < 1e-4);
        }
    }
}
